//! `headwater fn build`: calls the compilers that are installed, and says what is missing.

use anyhow::{Context, Result, bail, ensure};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The header that C functions include.
pub(super) const HEADER: &str = "headwater.h";
pub(super) const HEADER_TEXT: &str = include_str!("../../../../../examples/functions/headwater.h");

/// Flags of `headwater fn build`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The project's folder, or a single file: .c, .rs or .ts
    #[arg(default_value = ".")]
    source: PathBuf,
    /// The module to write [default: the source's name with .wasm, beside it]
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl Args {
    pub(super) fn run(self) -> Result<ExitCode> {
        let source = source_of(&self.source)?;
        let out = self.out.unwrap_or_else(|| module_of(&source));
        build(&source, &out)?;
        let bytes = std::fs::metadata(&out).map_or(0, |of| of.len());
        writeln!(std::io::stdout(), "{}: {bytes} bytes", out.display())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// What there is to build.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Source {
    C(PathBuf),
    RustFile(PathBuf),
    /// The folder of a `Cargo.toml`.
    RustProject(PathBuf),
    AssemblyScript(PathBuf),
}

/// What a path names: a file, or the project in a folder.
pub(super) fn source_of(path: &Path) -> Result<Source> {
    let ending = |path: &Path| path.extension().and_then(|of| of.to_str()).map(str::to_owned);
    let file = |path: PathBuf| match ending(&path).as_deref() {
        Some("c") => Some(Source::C(path)),
        Some("rs") => Some(Source::RustFile(path)),
        Some("ts") => Some(Source::AssemblyScript(path)),
        _ => None,
    };
    if path.is_file() {
        return file(path.to_owned())
            .with_context(|| format!("{}: it ends with none of .c, .rs, .ts", path.display()));
    }
    ensure!(path.is_dir(), "{}: there is no such file or folder", path.display());
    if path.join("Cargo.toml").is_file() {
        return Ok(Source::RustProject(path.to_owned()));
    }
    let name = name_of(path)?;
    let found = ["c", "ts"].into_iter().map(|ending| path.join(format!("{name}.{ending}")));
    found.filter(|path| path.is_file()).find_map(file).with_context(|| {
        format!("{}: there is neither {name}.c, {name}.ts nor Cargo.toml", path.display())
    })
}

/// The name of a folder, which is that of its module.
pub(super) fn name_of(folder: &Path) -> Result<String> {
    let whole = folder.canonicalize()?;
    let name = whole.file_name().and_then(|name| name.to_str());
    Ok(name.with_context(|| format!("{}: a folder without a name", folder.display()))?.to_owned())
}

/// Where the module of a source is written to.
pub(super) fn module_of(source: &Source) -> PathBuf {
    match source {
        Source::C(path) | Source::RustFile(path) | Source::AssemblyScript(path) => {
            path.with_extension("wasm")
        }
        Source::RustProject(folder) => {
            let name = name_of(folder).unwrap_or_else(|_| String::from("module"));
            folder.join(name).with_extension("wasm")
        }
    }
}

/// Builds a module.
fn build(source: &Source, out: &Path) -> Result<()> {
    match source {
        Source::C(path) => build_c(path, out),
        Source::RustFile(path) => {
            let mut rustc = Command::new("rustc");
            rustc.args(["--edition", "2024", "--target", RUST_TARGET, "--crate-type", "cdylib"]);
            rustc.args(["-O", "-C", "panic=abort", "-C", "strip=symbols", "-C", RUST_STACK]);
            rustc.arg("-o").arg(out).arg(path);
            run(&mut rustc, "rustc", RUST_HINT)
        }
        Source::RustProject(folder) => build_rust(folder, out),
        Source::AssemblyScript(path) => build_assemblyscript(path, out),
    }
}

fn build_c(path: &Path, out: &Path) -> Result<()> {
    const HINT: &str = "Debian: apt install clang lld";
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut clang = Command::new("clang");
    clang.args(["--target=wasm32", "-O2", "-Wall", "-nostdlib", "-mbulk-memory"]);
    clang.args(["-Wl,--no-entry", "-Wl,-z,stack-size=8192"]);
    let own;
    if !folder.join(HEADER).is_file() {
        own = tempfile::tempdir().context("cannot make a temporary folder")?;
        std::fs::write(own.path().join(HEADER), HEADER_TEXT)?;
        clang.arg("-I").arg(own.path());
    }
    clang.arg("-o").arg(out).arg(path);
    run(&mut clang, "clang", HINT)
}

const RUST_TARGET: &str = "wasm32-unknown-unknown";
const RUST_STACK: &str = "link-arg=-zstack-size=8192";
const RUST_HINT: &str =
    "https://rustup.rs installs Rust; rustup target add wasm32-unknown-unknown its WebAssembly";

fn build_rust(folder: &Path, out: &Path) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--quiet", "--target", RUST_TARGET]).current_dir(folder);
    cargo.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS", format!("-C {RUST_STACK}"));
    // Where its artefacts are is told here, so that no setting elsewhere moves them.
    let target = folder.canonicalize()?.join("target");
    cargo.arg("--target-dir").arg(&target);
    run(&mut cargo, "cargo", RUST_HINT)?;
    let built = target.join(RUST_TARGET).join("release");
    let mut modules = Vec::new();
    for entry in std::fs::read_dir(&built)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "wasm") {
            modules.push(path);
        }
    }
    let [module] = &modules[..] else {
        bail!(
            "{}: {} modules instead of one; is crate-type cdylib?",
            built.display(),
            modules.len()
        );
    };
    std::fs::copy(module, out).with_context(|| format!("cannot write {}", out.display()))?;
    Ok(())
}

fn build_assemblyscript(path: &Path, out: &Path) -> Result<()> {
    const HINT: &str = "install Node.js, then: npm install --save-dev assemblyscript";
    let folder = path.parent().unwrap_or(Path::new(""));
    let local = folder.join("node_modules/.bin/asc");
    let program = if local.is_file() { local } else { PathBuf::from("asc") };
    let mut asc = Command::new(&program);
    asc.arg(path).arg("-o").arg(out);
    asc.args(["-O", "--runtime", "stub", "--use", "abort=", "--initialMemory", "1"]);
    run(&mut asc, "asc", HINT)
}

/// Runs a compiler, whose messages are for the user.
fn run(command: &mut Command, name: &str, hint: &str) -> Result<()> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => bail!("{name} failed ({status}); if a part of it is missing: {hint}"),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("{name} is not installed ({hint})")
        }
        Err(error) => Err(error).with_context(|| format!("{name} does not start")),
    }
}
