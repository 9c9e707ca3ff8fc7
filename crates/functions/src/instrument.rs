//! Marks what a module writes, so that its memory can be put back after each call.
//!
//! No call may see what an earlier one left behind. Making a new instance for each would take many
//! times as long as a short function does, and so would copying back the least memory that
//! WebAssembly knows, 64 KiB. So a module is rewritten as it is loaded: every instruction that
//! writes to memory first notes where, as a bit of a 64-bit word for each of 64 chunks of the
//! memory. Afterwards the chunks that were written are copied back. Mutable globals get exports, by
//! which they are put back too.
//!
//! # Cost
//! About ten instructions and no branch for an instruction that writes.

use wasm_encoder::reencode::{Error, Reencode, utils};
use wasm_encoder::{
    CodeSection, ConstExpr, ExportKind, ExportSection, Function, GlobalSection, GlobalType,
    Instruction, Module, SectionId, ValType,
};
use wasmparser::{
    FunctionBody, Operator, Parser, Payload, TypeRef, ValidPayload, Validator, WasmFeatures,
};

/// Name under which the word of marks is exported.
pub(crate) const MARKS: &str = "headwater marks";
/// Name under which the memory is exported.
pub(crate) const MEMORY: &str = "headwater memory";
/// Names under which mutable globals are exported, with their numbers behind.
pub(crate) const GLOBAL: &str = "headwater global ";

/// Chunks that the memory is divided into: one for each bit of the word.
const CHUNKS: u64 = 64;
/// Size of the smallest chunk, as a power of two.
const SHIFT_MIN: u32 = 8;
/// No instruction that writes one value writes more bytes: what starts in one chunk may reach so
/// many bytes less one into the next.
pub(crate) const REACH: usize = 8;
const PAGE_BYTES: u64 = 64 << 10;

/// Most functions of a module, and most bytes of one: compiling takes more than proportional time.
const FUNCTIONS_MAX: u32 = 10_000;
const BODY_BYTES_MAX: usize = 128 << 10;
const LOCALS_MAX: u32 = 2000;
const GLOBALS_MAX: u32 = 1000;
const EXPORTS_MAX: u32 = 1000;

/// What a module may use: what compilers give by default, less what can do without here.
fn features() -> WasmFeatures {
    WasmFeatures::MUTABLE_GLOBAL
        | WasmFeatures::SATURATING_FLOAT_TO_INT
        | WasmFeatures::SIGN_EXTENSION
        | WasmFeatures::MULTI_VALUE
        | WasmFeatures::BULK_MEMORY
        | WasmFeatures::CALL_INDIRECT_OVERLONG
        | WasmFeatures::FLOATS
        | WasmFeatures::EXTENDED_CONST
}

/// A module that marks what it writes.
#[derive(Debug)]
pub(crate) struct Instrumented {
    pub(crate) bytes: Vec<u8>,
    /// Size of a chunk, as a power of two.
    pub(crate) shift: u32,
    /// How many mutable globals are exported.
    pub(crate) globals: u32,
    /// The module changes what cannot be put back: each call needs an instance of its own.
    pub(crate) once: bool,
}

/// What is known of a module before it is rewritten.
#[derive(Default)]
struct ModuleShape {
    /// Bytes of memory at the start.
    memory: u64,
    has_memory: bool,
    /// Globals, imported and own.
    globals: u32,
    /// Which of them can change.
    mutable: Vec<u32>,
}

/// Checks a module and rewrites it.
///
/// # Errors
/// It is no module, or goes beyond the limits; the text says where.
pub(crate) fn instrument(module: &[u8], memory_bytes_max: usize) -> Result<Instrumented, String> {
    let facts = check(module)?;
    if facts.memory > memory_bytes_max as u64 {
        return Err(format!(
            "its memory has {} bytes at the start (allowed: {memory_bytes_max}, \
             function-memory-bytes-max)",
            facts.memory
        ));
    }
    let chunk = facts.memory.div_ceil(CHUNKS).max(1).next_power_of_two();
    let shift = chunk.ilog2().max(SHIFT_MIN);
    let globals = facts.mutable.len() as u32;
    let mut rewriter =
        Rewriter { shift, marks: facts.globals, once: false, params: Params::default(), facts };
    let mut out = Module::new();
    rewriter
        .parse_core_module(&mut out, Parser::new(0), module)
        .map_err(|error| format!("it cannot be rewritten: {error}"))?;
    Ok(Instrumented { bytes: out.finish(), shift, globals, once: rewriter.once })
}

/// Validates a module, and gathers what rewriting needs.
fn check(module: &[u8]) -> Result<ModuleShape, String> {
    if !Parser::is_core_wasm(module) {
        return Err(String::from("it is no WebAssembly module"));
    }
    let told = |error: wasmparser::BinaryReaderError| {
        format!("{} at byte {}", error.message(), error.offset())
    };
    let too_many = |what: &str, count: u32, max: u32| {
        if count > max { Err(format!("it has {count} {what} (allowed: {max})")) } else { Ok(()) }
    };
    let mut facts = ModuleShape::default();
    let mut validator = Validator::new_with_features(features());
    let mut allocations = wasmparser::FuncValidatorAllocations::default();
    for payload in Parser::new(0).parse_all(module) {
        let payload = payload.map_err(told)?;
        if let ValidPayload::Func(function, body) = validator.payload(&payload).map_err(told)? {
            if body.range().len() > BODY_BYTES_MAX {
                return Err(format!("a function has more than {BODY_BYTES_MAX} bytes"));
            }
            let mut locals = 0_u32;
            for pair in body.get_locals_reader().map_err(told)? {
                locals = locals.saturating_add(pair.map_err(told)?.0);
            }
            too_many("locals in one function", locals, LOCALS_MAX)?;
            let mut function = function.into_validator(allocations);
            function.validate(&body).map_err(told)?;
            allocations = function.into_allocations();
        }
        match payload {
            Payload::ImportSection(imports) => {
                for import in imports {
                    if let TypeRef::Global(global) = import.map_err(told)?.ty {
                        facts.note_global(global.mutable);
                    }
                }
            }
            Payload::FunctionSection(functions) => {
                too_many("functions", functions.count(), FUNCTIONS_MAX)?;
            }
            Payload::MemorySection(memories) => {
                for memory in memories {
                    facts.memory = memory.map_err(told)?.initial.saturating_mul(PAGE_BYTES);
                    facts.has_memory = true;
                }
            }
            Payload::GlobalSection(globals) => {
                too_many("globals", globals.count(), GLOBALS_MAX)?;
                for global in globals {
                    facts.note_global(global.map_err(told)?.ty.mutable);
                }
            }
            Payload::ExportSection(exports) => {
                too_many("exports", exports.count(), EXPORTS_MAX)?;
            }
            _ => {}
        }
    }
    Ok(facts)
}

impl ModuleShape {
    fn note_global(&mut self, mutable: bool) {
        if mutable {
            self.mutable.push(self.globals);
        }
        self.globals += 1;
    }
}

/// How many parameters each function has, to number the locals behind them.
#[derive(Default)]
struct Params {
    /// Of each type.
    types: Vec<u32>,
    /// Of each function that has a body, in order.
    functions: Vec<u32>,
    /// Bodies rewritten so far.
    bodies: usize,
}

struct Rewriter {
    shift: u32,
    /// Number of the global that the marks are in, behind all others.
    marks: u32,
    once: bool,
    params: Params,
    facts: ModuleShape,
}

/// Numbers of the locals that rewriting adds to a function: one of each type for a value, and
/// three for addresses.
#[derive(Clone, Copy)]
struct Room {
    first: u32,
}

impl Room {
    const TYPES: [(u32, ValType); 4] =
        [(4, ValType::I32), (1, ValType::I64), (1, ValType::F32), (1, ValType::F64)];

    fn address(self) -> u32 {
        self.first
    }

    fn source(self) -> u32 {
        self.first + 1
    }

    fn length(self) -> u32 {
        self.first + 2
    }

    fn value(self, of: ValType) -> u32 {
        self.first
            + match of {
                ValType::I64 => 4,
                ValType::F32 => 5,
                ValType::F64 => 6,
                _ => 3,
            }
    }
}

/// The type that an instruction writes to memory, and where.
fn stored(operator: &Operator<'_>) -> Option<(ValType, u64)> {
    match operator {
        Operator::I32Store { memarg }
        | Operator::I32Store8 { memarg }
        | Operator::I32Store16 { memarg } => Some((ValType::I32, memarg.offset)),
        Operator::I64Store { memarg }
        | Operator::I64Store8 { memarg }
        | Operator::I64Store16 { memarg }
        | Operator::I64Store32 { memarg } => Some((ValType::I64, memarg.offset)),
        Operator::F32Store { memarg } => Some((ValType::F32, memarg.offset)),
        Operator::F64Store { memarg } => Some((ValType::F64, memarg.offset)),
        _ => None,
    }
}

impl Rewriter {
    /// Marks the chunk of one value; the stack stays as it is.
    fn mark_value(&self, out: &mut Function, room: Room, of: ValType, offset: u64) {
        out.instruction(&Instruction::LocalSet(room.value(of)));
        out.instruction(&Instruction::LocalTee(room.address()));
        out.instruction(&Instruction::GlobalGet(self.marks));
        out.instruction(&Instruction::I64Const(1));
        out.instruction(&Instruction::LocalGet(room.address()));
        if offset > 0 {
            // Where the sum is beyond 32 bits, writing fails.
            out.instruction(&Instruction::I32Const(offset as u32 as i32));
            out.instruction(&Instruction::I32Add);
        }
        self.chunk(out);
        out.instruction(&Instruction::I64Shl);
        out.instruction(&Instruction::I64Or);
        out.instruction(&Instruction::GlobalSet(self.marks));
        out.instruction(&Instruction::LocalGet(room.value(of)));
    }

    /// From an address to the number of its chunk, as 64 bits.
    fn chunk(&self, out: &mut Function) {
        out.instruction(&Instruction::I32Const(self.shift as i32));
        out.instruction(&Instruction::I32ShrU);
        out.instruction(&Instruction::I64ExtendI32U);
    }

    /// Marks the chunks of a filled or copied span; the stack (address, source or value, length)
    /// stays as it is. A span without bytes may mark chunks that are not written.
    fn mark_span(&self, out: &mut Function, room: Room) {
        out.instruction(&Instruction::LocalSet(room.length()));
        out.instruction(&Instruction::LocalSet(room.source()));
        out.instruction(&Instruction::LocalTee(room.address()));
        out.instruction(&Instruction::GlobalGet(self.marks));
        // All from the first chunk on, …
        out.instruction(&Instruction::I64Const(-1));
        out.instruction(&Instruction::LocalGet(room.address()));
        self.chunk(out);
        out.instruction(&Instruction::I64Shl);
        // … up to the last.
        out.instruction(&Instruction::I64Const(-1));
        out.instruction(&Instruction::I64Const(CHUNKS as i64 - 1));
        out.instruction(&Instruction::LocalGet(room.address()));
        out.instruction(&Instruction::LocalGet(room.length()));
        out.instruction(&Instruction::I32Add);
        out.instruction(&Instruction::I32Const(1));
        out.instruction(&Instruction::I32Sub);
        self.chunk(out);
        out.instruction(&Instruction::I64Sub);
        out.instruction(&Instruction::I64ShrU);
        out.instruction(&Instruction::I64And);
        out.instruction(&Instruction::I64Or);
        out.instruction(&Instruction::GlobalSet(self.marks));
        out.instruction(&Instruction::LocalGet(room.source()));
        out.instruction(&Instruction::LocalGet(room.length()));
    }

    fn add_global(&self, globals: &mut GlobalSection) {
        let of = GlobalType { val_type: ValType::I64, mutable: true, shared: false };
        globals.global(of, &ConstExpr::i64_const(0));
    }

    fn add_exports(&self, exports: &mut ExportSection) {
        exports.export(MARKS, ExportKind::Global, self.marks);
        if self.facts.has_memory {
            exports.export(MEMORY, ExportKind::Memory, 0);
        }
        for (at, &global) in self.facts.mutable.iter().enumerate() {
            exports.export(&format!("{GLOBAL}{at}"), ExportKind::Global, global);
        }
    }
}

impl Reencode for Rewriter {
    type Error = core::convert::Infallible;

    fn parse_type_section(
        &mut self,
        types: &mut wasm_encoder::TypeSection,
        section: wasmparser::TypeSectionReader<'_>,
    ) -> Result<(), Error> {
        for of in section.clone().into_iter_err_on_gc_types() {
            self.params.types.push(of?.params().len() as u32);
        }
        utils::parse_type_section(self, types, section)
    }

    fn parse_function_section(
        &mut self,
        functions: &mut wasm_encoder::FunctionSection,
        section: wasmparser::FunctionSectionReader<'_>,
    ) -> Result<(), Error> {
        for of in section.clone() {
            let params = self.params.types.get(of? as usize).copied();
            self.params.functions.push(params.unwrap_or(0));
        }
        utils::parse_function_section(self, functions, section)
    }

    fn parse_global_section(
        &mut self,
        globals: &mut GlobalSection,
        section: wasmparser::GlobalSectionReader<'_>,
    ) -> Result<(), Error> {
        utils::parse_global_section(self, globals, section)?;
        self.add_global(globals);
        Ok(())
    }

    fn parse_export_section(
        &mut self,
        exports: &mut ExportSection,
        section: wasmparser::ExportSectionReader<'_>,
    ) -> Result<(), Error> {
        utils::parse_export_section(self, exports, section)?;
        self.add_exports(exports);
        Ok(())
    }

    /// Adds the sections that are not there.
    fn intersperse_section_hook(
        &mut self,
        module: &mut Module,
        after: Option<SectionId>,
        before: Option<SectionId>,
    ) -> Result<(), Error> {
        let skips = |section: SectionId| {
            let place = order(section);
            after.is_none_or(|after| order(after) < place)
                && before.is_none_or(|before| order(before) > place)
        };
        if skips(SectionId::Global) {
            let mut globals = GlobalSection::new();
            self.add_global(&mut globals);
            module.section(&globals);
        }
        if skips(SectionId::Export) {
            let mut exports = ExportSection::new();
            self.add_exports(&mut exports);
            module.section(&exports);
        }
        Ok(())
    }

    fn parse_function_body(
        &mut self,
        code: &mut CodeSection,
        body: FunctionBody<'_>,
    ) -> Result<(), Error> {
        let params = self.params.functions.get(self.params.bodies).copied().unwrap_or(0);
        self.params.bodies += 1;
        let mut locals = Vec::new();
        let mut first = params;
        for pair in body.get_locals_reader()? {
            let (count, of) = pair?;
            first += count;
            locals.push((count, self.val_type(of)?));
        }
        locals.extend(Room::TYPES);
        let room = Room { first };
        let mut out = Function::new(locals);
        let mut reader = body.get_operators_reader()?;
        while !reader.eof() {
            let operator = reader.read()?;
            if let Some((of, offset)) = stored(&operator) {
                self.mark_value(&mut out, room, of, offset);
            }
            match operator {
                Operator::MemoryFill { .. }
                | Operator::MemoryCopy { .. }
                | Operator::MemoryInit { .. } => self.mark_span(&mut out, room),
                Operator::DataDrop { .. }
                | Operator::ElemDrop { .. }
                | Operator::TableInit { .. }
                | Operator::TableCopy { .. } => self.once = true,
                _ => {}
            }
            out.instruction(&self.instruction(operator)?);
        }
        code.function(&out);
        Ok(())
    }

    /// Names and debugging sections would not fit what was rewritten, and nobody reads them.
    fn parse_custom_section(
        &mut self,
        _module: &mut Module,
        _section: wasmparser::CustomSectionReader<'_>,
    ) -> Result<(), Error> {
        Ok(())
    }
}

/// The place of a section among the others.
fn order(section: SectionId) -> usize {
    const ORDER: [SectionId; 13] = [
        SectionId::Type,
        SectionId::Import,
        SectionId::Function,
        SectionId::Table,
        SectionId::Memory,
        SectionId::Tag,
        SectionId::Global,
        SectionId::Export,
        SectionId::Start,
        SectionId::Element,
        SectionId::DataCount,
        SectionId::Code,
        SectionId::Data,
    ];
    ORDER.iter().position(|&other| other == section).unwrap_or(ORDER.len())
}
