//! Has the linker of `--profile dist` keep one of functions that are the same, of which generic code has many.

use std::path::Path;
use std::process::Command;

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// Whether lld links, whose flag it is: Rust brings it for this target, and nobody has named another linker.
fn links_with_lld() -> bool {
    let target = "x86_64-unknown-linux-gnu";
    let flags = variable("CARGO_ENCODED_RUSTFLAGS");
    let others = ["linker", "fuse-ld"].iter().any(|word| flags.contains(word))
        || !variable("RUSTC_LINKER").is_empty();
    if variable("TARGET") != target || variable("HOST") != target || others {
        return false;
    }
    let root = Command::new(variable("RUSTC")).args(["--print", "sysroot"]).output();
    root.is_ok_and(|root| {
        let root = String::from_utf8_lossy(&root.stdout);
        let tools = Path::new(root.trim()).join("lib/rustlib").join(target).join("bin");
        tools.join("gcc-ld/ld.lld").is_file()
    })
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // That profile alone builds this package as "z".
    if variable("OPT_LEVEL") == "z" && links_with_lld() {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}
