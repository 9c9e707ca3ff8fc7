//! Has the linker of `--profile dist` leave out the names of functions, and keep one of those that are the same, of which generic code
//! has many.

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

/// Whether the program is built by that profile, which has a folder of its name: `dist/build/PACKAGE/out`.
fn is_dist() -> bool {
    let out = variable("OUT_DIR");
    let folder = Path::new(&out).ancestors().nth(3).and_then(Path::file_name);
    folder.is_some_and(|name| name == "dist")
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if !is_dist() {
        return;
    }
    if variable("CARGO_CFG_TARGET_OS") == "linux" {
        println!("cargo::rustc-link-arg-bins=-Wl,--strip-all");
    }
    if links_with_lld() {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}
