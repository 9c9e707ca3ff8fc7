//! Commands about the bits of values.

use super::options::{integer, is};
use super::refusal::Refusal;
use headwater_command::bits::{BitOperation, FieldAction, FieldFault, bit_offset, field_steps};
use headwater_command::{Args, BitWindow, Bits, Command, Data, Id, Spec};

const OFFSET: Refusal<'_> = Refusal::Text("bit offset is not an integer or out of range");

pub(super) fn decode<'a>(spec: &'static Spec, args: Args<'a>) -> Result<Command<'a>, Refusal<'a>> {
    let key = args.at(1);
    Ok(Command::Data(Data::Bits(match spec.id {
        Id::SetBit => {
            let offset = bit_offset(args.at(2), None).ok_or(OFFSET)?;
            let bit = match integer(args.at(3)) {
                Ok(bit @ (0 | 1)) => bit == 1,
                _ => return Err(Refusal::Text("bit is not an integer or out of range")),
            };
            Bits::Set { key, offset, bit }
        }
        Id::GetBit => Bits::Get { key, offset: bit_offset(args.at(2), None).ok_or(OFFSET)? },
        Id::BitCount => {
            let has_window = args.len() > 2;
            Bits::Count { key, window: has_window.then(|| window(args.from(2))).transpose()? }
        }
        Id::BitPos => {
            let bit = match integer(args.at(2))? {
                bit @ (0 | 1) => bit == 1,
                _ => return Err(Refusal::Text("The bit argument must be 1 or 0.")),
            };
            Bits::Position { key, bit, window: window(args.from(3))? }
        }
        Id::BitOp => combine(args)?,
        _ => {
            let (steps, read_only) = (args.from(2), spec.id == Id::BitFieldRo);
            let mut writes = false;
            for step in field_steps(steps) {
                let step = step.map_err(|fault| match fault {
                    FieldFault::Syntax => Refusal::Syntax,
                    FieldFault::Overflow => Refusal::Text("Invalid OVERFLOW type specified"),
                    FieldFault::Type => Refusal::Text(
                        "Invalid bitfield type. Use something like i16 u8. Note that u64 is not \
                         supported but i64 is.",
                    ),
                    FieldFault::Offset => OFFSET,
                    FieldFault::Number => Refusal::NotInteger,
                })?;
                writes |= step.action != FieldAction::Get;
            }
            if writes && read_only {
                return Err(Refusal::Text("BITFIELD_RO only supports the GET subcommand"));
            }
            Bits::Fields { key, steps, read_only: !writes }
        }
    })))
}

/// `[start [end [BYTE|BIT]]]`.
fn window(words: Args<'_>) -> Result<BitWindow, Refusal<'_>> {
    if words.len() > 3 {
        return Err(Refusal::Syntax);
    }
    let bits = match words.get(2) {
        None => false,
        Some(unit) if is(unit, "bit") => true,
        Some(unit) if is(unit, "byte") => false,
        Some(_) => return Err(Refusal::Syntax),
    };
    let start = words.get(0).map_or(Ok(0), integer)?;
    let end = words.get(1).map(integer).transpose()?;
    Ok(BitWindow { start, end, bits })
}

fn combine(args: Args<'_>) -> Result<Bits<'_>, Refusal<'_>> {
    let operation = BitOperation::named(args.at(1)).ok_or(Refusal::Syntax)?;
    let (to, from) = (args.at(2), args.from(3));
    if operation == BitOperation::Not && from.len() != 1 {
        return Err(Refusal::Text("BITOP NOT must be called with a single source key."));
    }
    Ok(Bits::Combine { operation, to, from })
}
