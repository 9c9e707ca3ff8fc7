//! `headwater fn test`: a module against its cases, on the engine and in the host that the server has.

use super::build;
use super::cases::{self, Bytes, Case, Expected};
use anyhow::{Context, Result, ensure};
use headwater_base::Millis;
use headwater_base::functions::{CallError, FunctionLimits, Source};
use headwater_base::hash::Secret;
use headwater_engine::{CallOptions, Engine, EngineError, Expiry, Settings, Stop};
use headwater_functions::Host;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Flags of `headwater fn test`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The module, or the folder of a project that was built
    #[arg(default_value = ".")]
    module: PathBuf,
    /// The cases [default: the module's name with .cases.toml, beside it]
    cases: Option<PathBuf>,
    /// What the module's name alone stands for [default: call, or its only function]
    #[arg(long, value_name = "NAME")]
    export: Option<String>,
}

/// The name of the module here.
const MODULE: &str = "m";

impl Args {
    pub(super) fn run(self) -> Result<ExitCode> {
        let module = if self.module.is_dir() {
            build::module_of(&build::source_of(&self.module)?)
        } else {
            self.module
        };
        let bytes = std::fs::read(&module).with_context(|| module.display().to_string())?;
        let path = self.cases.unwrap_or_else(|| module.with_extension("cases.toml"));
        let cases = cases::read(&path)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let limits = FunctionLimits::default();
        let told = |error: String| anyhow::anyhow!("{}: {error}", module.display());
        let mut host = Host::new(&limits, None, Secret::default()).map_err(told)?;
        host.load_now(MODULE, Source::Bytes(&bytes), self.export.as_deref(), false)
            .map_err(told)?;
        let settings = Settings::default();
        let mut engine = Engine::new(settings);
        engine.set_functions(Box::new(host));
        let (out, mut failed) = (&mut std::io::stdout(), 0);
        for (at, case) in cases.iter().enumerate() {
            let name = case.name.clone().unwrap_or_else(|| (at + 1).to_string());
            let differences =
                run(&mut engine, case, folder).with_context(|| format!("case {name}"))?;
            if !differences.is_empty() {
                failed += 1;
                writeln!(out, "case {name}:\n  {}", differences.join("\n  "))?;
            }
        }
        writeln!(out, "{} passed, {failed} failed", cases.len() - failed)?;
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Runs a case; what differs from it.
fn run(engine: &mut Engine, case: &Case, folder: &Path) -> Result<Vec<String>> {
    let get = |bytes: &Option<Bytes>| bytes.as_ref().map(|bytes| bytes.get(folder)).transpose();
    let (before, param) = (get(&case.value)?, get(&case.param)?.unwrap_or_default());
    let key = case.key.as_bytes();
    ensure!(!key.is_empty(), "a key has at least one byte");
    if let Some(now) = case.now {
        engine.advance(Millis(now));
    }
    engine.flush();
    if let Some(value) = &before {
        engine.set(key, value, Expiry::Never).map_err(|error| anyhow::anyhow!("{error}"))?;
    }
    let name = match &case.function {
        Some(function) => format!("{MODULE}.{function}"),
        None => String::from(MODULE),
    };
    let options = CallOptions { update: case.update, present_only: false };
    let called = engine.function_call(name.as_bytes(), key, &param, options);
    let called = called.map(|reply| reply.map(<[u8]>::to_vec));
    let mut differences = Vec::new();
    let (status, error) =
        match &called {
            Ok(_) => (0, None),
            Err(Stop::Failed(EngineError::Function {
                error: CallError::Status(status), ..
            })) if case.error.is_none() => (*status, None),
            Err(Stop::Failed(error)) => (0, Some(error.to_string())),
            Err(Stop::Wait(_)) => (0, Some(String::from("it waits for data"))),
        };
    match (&error, &case.error) {
        (None, None) if status != case.status => {
            differences.push(format!("status {status} instead of {}", case.status));
        }
        (Some(error), None) => differences.push(format!("it failed: {error}")),
        (None, Some(wanted)) => differences.push(format!("it did not fail with '{wanted}'")),
        (Some(error), Some(wanted)) if !error.contains(wanted.as_str()) => {
            differences.push(format!("it failed with '{error}' instead of '{wanted}'"));
        }
        _ => {}
    }
    if let (Ok(reply), Some(expected)) = (&called, &case.reply) {
        compare("reply", reply.as_deref(), expected, folder, &mut differences)?;
    }
    let after = match engine.get(key) {
        Ok(value) => value.map(|value| value.to_vec()),
        Err(_) => None,
    };
    match &case.after {
        Some(expected) => {
            compare("value", after.as_deref(), expected, folder, &mut differences)?;
        }
        None if after != before => {
            let (after, before) = (told(after.as_deref()), told(before.as_deref()));
            differences.push(format!("value {after} instead of {before}, as it was"));
        }
        None => {}
    }
    Ok(differences)
}

/// Notes where bytes are not what they should be.
fn compare(
    what: &str,
    found: Option<&[u8]>,
    expected: &Expected,
    folder: &Path,
    differences: &mut Vec<String>,
) -> Result<()> {
    let wanted = match expected {
        Expected::Is(there) if *there == found.is_some() => return Ok(()),
        Expected::Is(true) => String::from("some"),
        Expected::Is(false) => told(None),
        Expected::Bytes(bytes) => {
            let bytes = bytes.get(folder)?;
            if found == Some(&*bytes) {
                return Ok(());
            }
            told(Some(&bytes))
        }
    };
    differences.push(format!("{what} {} instead of {wanted}", told(found)));
    Ok(())
}

/// Bytes for people.
fn told(bytes: Option<&[u8]>) -> String {
    const SHOWN: usize = 200;
    match bytes {
        None => String::from("(none)"),
        Some(bytes) if bytes.len() > SHOWN => {
            format!("\"{}…\" ({} bytes)", bytes[..SHOWN].escape_ascii(), bytes.len())
        }
        Some(bytes) => format!("\"{}\"", bytes.escape_ascii()),
    }
}
