//! `headwater fn new`: files to begin with.

use anyhow::{Context, Result, ensure};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Flags of `headwater fn new`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder to make; its name is that of the module
    folder: PathBuf,
    /// What to write it in
    #[arg(long, value_enum, default_value_t = Language::C)]
    language: Language,
}

/// What functions are written in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Language {
    C,
    Rust,
    #[value(name = "assemblyscript")]
    AssemblyScript,
}

/// The module's name in a template.
const NAME: &str = "NAME";

impl Language {
    /// Paths and texts, in which [`NAME`] is the module's.
    fn files(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::C => &[
                ("NAME.c", include_str!("templates/counter.c")),
                (super::build::HEADER, super::build::HEADER_TEXT),
            ],
            Self::Rust => &[
                ("Cargo.toml", include_str!("templates/Cargo.toml.txt")),
                ("src/lib.rs", include_str!("templates/lib.rs.txt")),
            ],
            Self::AssemblyScript => &[
                ("package.json", include_str!("templates/package.json")),
                ("NAME.ts", include_str!("templates/counter.ts")),
            ],
        }
    }
}

impl Args {
    pub(super) fn run(self) -> Result<ExitCode> {
        let name = self.folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        ensure!(
            name.starts_with(|first: char| first.is_ascii_lowercase()) && name.bytes().all(letter),
            "'{name}': the name of a module has small letters, digits and '_', a letter first"
        );
        std::fs::create_dir(&self.folder)
            .with_context(|| format!("cannot make the folder {}", self.folder.display()))?;
        let cases = ("NAME.cases.toml", include_str!("templates/cases.toml"));
        let out = &mut std::io::stdout();
        for (path, text) in self.language.files().iter().chain([&cases]) {
            let path = self.folder.join(path.replace(NAME, name));
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            std::fs::write(&path, text.replace(NAME, name))
                .with_context(|| format!("cannot write {}", path.display()))?;
            writeln!(out, "{}", path.display())?;
        }
        let folder = self.folder.display();
        writeln!(out, "\nheadwater fn build {folder} && headwater fn test {folder}")?;
        Ok(ExitCode::SUCCESS)
    }
}
