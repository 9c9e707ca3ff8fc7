//! The examples, built from their sources, do what they say. Without clang and lld they are skipped.

use crate::plain::{Plain, host};
use headwater_base::functions::{CallError, Functions, Source};
use headwater_functions::Host;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A host with the example of this name; `None` where nothing can build it.
fn example(name: &str) -> Option<Host> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/functions");
    let found = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !found("clang") || !found("wasm-ld") {
        assert!(std::env::var_os("HEADWATER_NEEDS_CLANG").is_none(), "clang or lld is missing");
        return None;
    }
    Some(build(&here, name, "c"))
}

/// A host with an example, built by the script.
fn build(here: &Path, name: &str, ending: &str) -> Host {
    let out = tempfile::tempdir().unwrap();
    let source: PathBuf = here.join(format!("{name}.{ending}"));
    let built = Command::new(here.join("build")).arg(out.path()).arg(source).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let module = std::fs::read(out.path().join(format!("{name}.wasm"))).unwrap();
    let mut host = host();
    host.load_now("x", Source::Bytes(&module), None, false).unwrap();
    host
}

/// Calls `x.name` for the value, which it may change, and gives the reply.
fn call(
    host: &mut Host,
    name: &str,
    value: &mut Option<Vec<u8>>,
    param: &[u8],
) -> Result<Vec<u8>, CallError> {
    let mut plain = Plain { value: value.clone(), param: param.to_vec(), ..Plain::default() };
    host.call(format!("x.{name}").as_bytes(), &mut plain)?;
    *value = plain.value;
    Ok(plain.reply)
}

#[test]
fn counter() {
    let Some(mut host) = example("counter") else { return };
    let value = &mut None;
    for (param, sum) in
        [("", "1"), ("41", "42"), ("-50", "-8"), ("9223372036854775807", "9223372036854775799")]
    {
        assert_eq!(call(&mut host, "add", value, param.as_bytes()), Ok(sum.into()));
        assert_eq!(value.as_deref(), Some(sum.as_bytes()));
    }
    assert_eq!(call(&mut host, "add", value, b"9"), Err(CallError::Status(2)));
    assert_eq!(call(&mut host, "add", value, b"x"), Err(CallError::Status(1)));
    for text in ["", "-9223372036854775808"] {
        *value = Some(text.into());
        assert!(call(&mut host, "add", value, b"0").is_ok(), "{text}");
    }
    for text in ["1x", "-", "9223372036854775808", "123456789012345678901"] {
        *value = Some(text.into());
        assert_eq!(call(&mut host, "add", value, b"0"), Err(CallError::Status(1)), "{text}");
    }
}

#[test]
fn json() {
    let Some(mut host) = example("json") else { return };
    let text =
        r#" { "name":"A \" {b}" , "deep": {"n":[1,{"x":2},"}"], "y" : -1.5e3 },"e":{} ,"t":true}"#;
    let value = &mut Some(text.as_bytes().to_vec());
    for (path, found) in [
        ("name", r#""A \" {b}""#),
        ("deep.n", r#"[1,{"x":2},"}"]"#),
        ("deep.y", "-1.5e3"),
        ("e", "{}"),
        ("t", "true"),
        ("absent", ""),
        ("deep.absent", ""),
        ("e.x", ""),
    ] {
        assert_eq!(call(&mut host, "get", value, path.as_bytes()), Ok(found.into()), "{path}");
    }
    for (path, status) in [("name.x", 1), ("t.x", 1), ("absent.x", 1)] {
        assert_eq!(call(&mut host, "get", value, path.as_bytes()), Err(CallError::Status(status)));
    }
    for (param, after) in [
        ("t\nnull", text.replace("true", "null")),
        ("deep.y\n7", text.replace("true", "null").replace("-1.5e3", "7")),
        (
            "e.new\n\"v\"",
            text.replace("true", "null").replace("-1.5e3", "7").replace("{} ", r#"{"new":"v"} "#),
        ),
    ] {
        assert_eq!(call(&mut host, "set", value, param.as_bytes()), Ok(Vec::new()));
        assert_eq!(String::from_utf8(value.clone().unwrap()).unwrap(), after);
    }
    call(&mut host, "set", value, b"z\n[]").unwrap();
    assert!(value.as_deref().unwrap().ends_with(br#","z":[]}"#));
    for (text, status) in [("", 1), ("[1]", 1), ("{\"a\"", 1), ("{\"a\":1", 1), ("{", 1)] {
        let found = call(&mut host, "get", &mut Some(text.into()), b"b");
        assert_eq!(found, Err(CallError::Status(status)), "{text}");
    }
    assert_eq!(call(&mut host, "get", &mut None, b"b"), Err(CallError::Status(1)));
}

#[test]
fn protobuf() {
    let Some(mut host) = example("protobuf") else { return };
    // 1: 150, 2: "testing", 3: fixed32, 4: fixed64, 1: 3.
    let mut bytes = vec![0x08, 0x96, 0x01, 0x12, 7];
    bytes.extend(b"testing");
    bytes.extend([0x1d, 1, 2, 3, 4, 0x21, 8, 7, 6, 5, 4, 3, 2, 1, 0x08, 3]);
    let value = &mut Some(bytes);
    for (field, found) in [
        ("1", &b"3"[..]),
        ("2", b"testing"),
        ("3", &[1, 2, 3, 4]),
        ("4", &[8, 7, 6, 5, 4, 3, 2, 1]),
        ("5", b""),
    ] {
        assert_eq!(
            call(&mut host, "get", value, field.as_bytes()).as_deref(),
            Ok(found),
            "{field}"
        );
    }
    for (param, field, found) in [
        ("1=9", "1", "9"),
        ("1=-1", "1", "-1"),
        ("2:a longer text", "2", "a longer text"),
        ("2:", "2", ""),
        ("77:new", "77", "new"),
        ("78=300", "78", "300"),
    ] {
        call(&mut host, "set", value, param.as_bytes()).unwrap();
        let get = call(&mut host, "get", value, field.as_bytes());
        assert_eq!(get, Ok(found.into()), "{param}");
    }
    assert_eq!(call(&mut host, "set", value, b"3=1"), Err(CallError::Status(3)));
    for param in [&b""[..], b"x=1", b"1", b"0=1", b"1=x"] {
        assert_eq!(call(&mut host, "set", value, param), Err(CallError::Status(2)));
    }
    for bytes in [&[0x08][..], &[0x12, 9, 1], &[0x0f], &[0x21, 1], &[0xff; 12]] {
        let found = call(&mut host, "get", &mut Some(bytes.to_vec()), b"1");
        assert_eq!(found, Err(CallError::Status(1)), "{bytes:?}");
    }
    let mut new = None;
    call(&mut host, "set", &mut new, b"1=1").unwrap();
    assert_eq!(new, Some(vec![8, 1]));
}

#[test]
fn capped_list() {
    let Some(mut host) = example("capped_list") else { return };
    let value = &mut None;
    let mut all = Vec::new();
    for at in 0..200_usize {
        let entry = vec![at as u8; 1 + at % 40];
        let param = [&1000_u32.to_le_bytes()[..], &entry].concat();
        call(&mut host, "push", value, &param).unwrap();
        all.push([&(entry.len() as u16).to_le_bytes()[..], &entry].concat());
        let list = value.as_deref().unwrap();
        assert!(list.len() <= 1000 && all.concat().ends_with(list));
        assert!(at < 100 || list.len() > 800);
    }
    let newest = all[197..].concat();
    assert_eq!(call(&mut host, "last", value, b"3"), Ok(newest));
    assert_eq!(call(&mut host, "last", value, b"0"), Ok(Vec::new()));
    assert_eq!(call(&mut host, "last", value, b"100000"), Ok(value.clone().unwrap()));
    assert_eq!(call(&mut host, "last", &mut None, b"3"), Ok(Vec::new()));
    let large = [&100_u32.to_le_bytes()[..], &[0; 99]].concat();
    assert_eq!(call(&mut host, "push", value, &large), Err(CallError::Status(1)));
}

#[test]
fn dvr() {
    let Some(mut host) = example("dvr") else { return };
    let numbers: Vec<u64> = (0..100).map(|at| at * 7 + 3).collect();
    let record = |number: &u64| {
        let mut record = vec![b'.'; 480];
        record[..8].copy_from_slice(&number.to_le_bytes());
        record[8..16].fill(0);
        record
    };
    let value = &mut Some(numbers.iter().flat_map(record).collect::<Vec<u8>>());
    for &number in &numbers {
        let set = [&number.to_le_bytes()[..], &[2, 1, 2, 3, 4, 5, 6, 7]].concat();
        assert_eq!(call(&mut host, "set_state", value, &set), Ok(Vec::new()));
        let get = call(&mut host, "get_state", value, &number.to_le_bytes());
        assert_eq!(get, Ok(vec![2, 1, 2, 3, 4, 5, 6, 7]));
    }
    assert_eq!(value.as_ref().unwrap().len(), 48_000);
    assert_eq!(call(&mut host, "count", value, &[2]), Ok(b"100".to_vec()));
    assert_eq!(call(&mut host, "count", value, &[0]), Ok(b"0".to_vec()));
    for number in [0_u64, 4, 10_000] {
        let get = call(&mut host, "get_state", value, &number.to_le_bytes());
        assert_eq!(get, Err(CallError::Status(1)));
    }
    assert_eq!(call(&mut host, "get_state", &mut None, &[0; 8]), Err(CallError::Status(1)));
    assert_eq!(call(&mut host, "set_state", value, &[0; 15]), Err(CallError::Status(2)));
}

#[test]
fn token_bucket() {
    let Some(mut host) = example("token_bucket") else { return };
    let value = &mut None;
    for (param, taken) in
        [("2 10 4", "1"), ("2 10 4", "1"), ("2 10 4", "0"), ("2 10 2", "1"), ("2 10 1", "0")]
    {
        assert_eq!(call(&mut host, "take", value, param.as_bytes()), Ok(taken.into()), "{param}");
    }
    // Two and a half seconds ago, of a test's clock that stands at 1234 ms.
    let when = |millis: u64| [0_u64.to_le_bytes(), millis.to_le_bytes()].concat();
    for (millis, param, taken) in [
        (234, "2 10 2", "1"),
        (234, "2 10 3", "0"),
        (0, "1000000000 10 10", "1"),
        (9999, "2 10 1", "0"),
        (0, "0 10 1", "0"),
    ] {
        let full = call(&mut host, "take", &mut Some(when(millis)), param.as_bytes());
        assert_eq!(full, Ok(taken.into()), "{param}");
    }
    for param in ["", "1 2", "1 2 3 4", "1 -2 3", "a b c"] {
        assert_eq!(call(&mut host, "take", value, param.as_bytes()), Err(CallError::Status(1)));
    }
    assert_eq!(call(&mut host, "take", &mut Some(vec![1]), b"1 1 1"), Err(CallError::Status(2)));
}

#[test]
fn hyperloglog() {
    let Some(mut host) = example("hyperloglog") else { return };
    let value = &mut None;
    assert_eq!(call(&mut host, "count", value, b""), Ok(b"0".to_vec()));
    for count in 1..=20_000_u32 {
        for _ in 0..2 {
            call(&mut host, "add", value, &count.to_le_bytes()).unwrap();
        }
        if [1, 10, 100, 1000, 20_000].contains(&count) {
            let told = call(&mut host, "count", value, b"").unwrap();
            let told: f64 = String::from_utf8(told).unwrap().parse().unwrap();
            let error = told / f64::from(count) - 1.0;
            assert!(error.abs() < 0.1, "{count} things counted as {told}");
        }
    }
    assert_eq!(call(&mut host, "add", &mut Some(vec![0]), b"x"), Err(CallError::Status(1)));
}

#[expect(clippy::print_stderr, reason = "a skipped test must be seen")]
#[test]
fn bitmap() {
    let rustc = Command::new("rustc").args(["--print", "sysroot"]).output().unwrap();
    let sysroot = String::from_utf8(rustc.stdout).unwrap();
    if !Path::new(sysroot.trim()).join("lib/rustlib/wasm32-unknown-unknown").is_dir() {
        eprintln!("SKIPPED: the example in Rust (rustup target add wasm32-unknown-unknown)");
        return;
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/functions");
    let host = &mut build(&here, "bitmap", "rs");
    let value = &mut None;
    assert_eq!(call(host, "count", value, b""), Ok(b"0".to_vec()));
    assert_eq!(call(host, "get", value, b"7"), Ok(b"0".to_vec()));
    assert_eq!(*value, None);
    for number in 0..200_u32 {
        let (param, wanted) = ((number * 37 % 20_000).to_string(), number + 1);
        assert_eq!(call(host, "set", value, param.as_bytes()), Ok(b"0".to_vec()));
        assert_eq!(call(host, "set", value, param.as_bytes()), Ok(b"1".to_vec()));
        assert_eq!(call(host, "get", value, param.as_bytes()), Ok(b"1".to_vec()));
        assert_eq!(call(host, "count", value, b""), Ok(wanted.to_string().into_bytes()));
    }
    for param in [&b""[..], b"-1", b"x", b"33554432", b"4294967296", b"12345678901", b"\xff"] {
        assert_eq!(call(host, "set", value, param), Err(CallError::Status(1)));
    }
}
