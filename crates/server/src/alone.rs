//! Tests that look at what their process takes, in a process where nothing else runs.

use std::process::Command;

/// Set in the process that has one test.
const IS_ALONE: &str = "HEADWATER_TEST_ALONE";

/// Runs `test`, which is called `name` within `module` (a `module_path!()`), in a process of its own: other tests of this one allocate and
/// free memory meanwhile. Panics where it fails, or where there is no such test.
pub(crate) fn alone(module: &str, name: &str, test: impl FnOnce()) {
    if std::env::var_os(IS_ALONE).is_some() {
        return test();
    }
    let (_, within) = module.split_once("::").unwrap();
    let path = format!("{within}::{name}");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &path, "--nocapture", "--test-threads", "1"]).env(IS_ALONE, "1");
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let is_run = output.status.success() && told.contains("1 passed");
    assert!(is_run, "{told}{}", String::from_utf8_lossy(&output.stderr));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_fails_or_is_not_there_is_told() {
        let failed = |name: &str, test: fn()| {
            std::panic::catch_unwind(|| alone(module_path!(), name, test)).is_err()
        };
        if std::env::var_os(IS_ALONE).is_some() {
            panic!("as it should");
        }
        assert!(failed("a_test_that_fails_or_is_not_there_is_told", || ()));
        assert!(failed("no_such_test", || ()));
    }
}
