//! Has the linker of `--profile dist` keep one of functions that are the same, of which generic code has many.

fn main() {
    let is = |variable, value| std::env::var(variable).is_ok_and(|it| it == value);
    // That profile alone builds this package as "z". The flag is lld's, which Rust links with on this target.
    let is_dist = is("OPT_LEVEL", "z");
    let has_lld =
        is("TARGET", "x86_64-unknown-linux-gnu") && is("HOST", "x86_64-unknown-linux-gnu");
    #[expect(clippy::print_stdout, reason = "this is how Cargo is told")]
    {
        println!("cargo::rerun-if-changed=build.rs");
        if is_dist && has_lld {
            println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
        }
    }
}
