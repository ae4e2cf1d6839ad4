//! The program of the direct tools, run as a sandbox runs it: arguments, JSON in, JSON out.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ringfence_model::tools::{
    Answer, FailureKind, MAX_REQUEST, MAX_RESPONSE, PatchAnswer, ReadAnswer, ToolEntry, Verb,
};
use serde_json::{Value, json};

fn run(arguments: &[&str], input: &[u8]) -> (Option<i32>, Vec<u8>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ringfence-tools"))
        .args(arguments)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // It may have its answer before it has read everything.
    let _ = child
        .stdin
        .take()
        .expect("it was asked for")
        .write_all(input);
    let output = child.wait_with_output().expect("the program ends");
    (output.status.code(), output.stdout)
}

fn call(root: &Path, verb: &str, request: &Value) -> (Option<i32>, Value) {
    let root = root.to_str().expect("a plain path");
    let (code, output) = run(&[root, verb], request.to_string().as_bytes());
    assert!(output.len() <= MAX_RESPONSE);
    let answer = serde_json::from_slice(&output).expect("one JSON object");
    (code, answer)
}

fn ok(root: &Path, verb: &str, request: &Value) -> Value {
    let (code, answer) = call(root, verb, request);
    assert_eq!(code, Some(0), "{verb} {request}: {answer}");
    answer["ok"].clone()
}

fn kind(root: &Path, verb: &str, request: &Value) -> String {
    let (code, answer) = call(root, verb, request);
    assert_eq!(code, Some(1), "{verb} {request}: {answer}");
    answer["error"]["kind"].as_str().expect("a kind").to_owned()
}

#[test]
fn a_piece_of_work_from_beginning_to_end() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path();
    let absolute = root.join("src/lib.rs");
    ok(root, "mkdir", &json!({"path": "src"}));
    let request = json!({"path": absolute, "text": "fn one() {}\nfn two() {}\n"});
    assert_eq!(
        ok(root, "write", &request),
        json!({"path": "src/lib.rs", "size": 24, "created": true})
    );
    let request = json!({"path": "src/lib.rs", "old": "two", "new": "three"});
    assert_eq!(
        ok(root, "edit", &request),
        json!({"path": "src/lib.rs", "replaced": 1, "lines": [2]})
    );
    let diff = "diff --git a/src/lib.rs b/src/lib.rs\n--- a/src/lib.rs\n+++ b/src/lib.rs\n\
        @@ -1,2 +1,3 @@\n fn one() {}\n+fn two() {}\n fn three() {}\n";
    let patched = ok(root, "patch", &json!({"text": diff}));
    let patched: PatchAnswer = serde_json::from_value(patched).unwrap();
    assert_eq!(patched.files.len(), 1);
    let found = ok(root, "search", &json!({"pattern": r"fn t\w+"}));
    assert_eq!(found["matches"].as_array().unwrap().len(), 2);
    assert_eq!(
        found["matches"][0],
        json!({
            "path": "src/lib.rs", "line": 2, "column": 1, "text": "fn two() {}",
            "before": [], "after": []
        })
    );
    let globbed = ok(root, "glob", &json!({"pattern": "**/*.rs"}));
    assert_eq!(
        globbed,
        json!({"paths": ["src/lib.rs"], "truncated": false})
    );
    ok(root, "move", &json!({"from": "src/lib.rs", "to": "lib.rs"}));
    let read = ok(root, "read", &json!({"path": "lib.rs", "lines": [3, 3]}));
    let read: ReadAnswer = serde_json::from_value(read).unwrap();
    assert_eq!(read.text.as_deref(), Some("fn three() {}\n"));
    let entry = ok(root, "stat", &json!({"path": "lib.rs"}));
    let entry: ToolEntry = serde_json::from_value(entry).unwrap();
    assert_eq!(entry.size, 38);
    ok(root, "remove", &json!({"path": "lib.rs"}));
    let listed = ok(root, "list", &json!({}));
    assert_eq!(listed["entries"].as_array().unwrap().len(), 1);
    assert_eq!(listed["entries"][0]["type"], "directory");
}

#[test]
fn nothing_leaves_the_root() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("root");
    fs::create_dir_all(root.join("a")).unwrap();
    fs::write(place.path().join("secret"), "s").unwrap();
    std::os::unix::fs::symlink("../secret", root.join("link")).unwrap();
    for path in ["../secret", "/etc/passwd", "link", "a/../../secret"] {
        for (verb, request) in [
            ("read", json!({"path": path})),
            ("write", json!({"path": path, "text": "x"})),
            ("edit", json!({"path": path, "old": "s", "new": "x"})),
            ("list", json!({"path": path})),
            ("glob", json!({"path": path, "pattern": "*"})),
            ("search", json!({"path": path, "pattern": "s"})),
            ("mkdir", json!({"path": path})),
        ] {
            assert_eq!(kind(&root, verb, &request), "denied", "{verb} {path}");
        }
    }
    assert_eq!(fs::read(place.path().join("secret")).unwrap(), b"s");
}

#[test]
fn odd_calls_are_answered_too() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().to_str().unwrap();
    let unknown = br#"{"path":"a","x":1}"#;
    let cases: [(&[&str], &[u8], FailureKind); 8] = [
        (&[], b"{}", FailureKind::Invalid),
        (&[root], b"{}", FailureKind::Invalid),
        (&[root, "fly"], b"{}", FailureKind::Invalid),
        (&["relative", "read"], b"{}", FailureKind::Invalid),
        (&["/no/such/root", "read"], b"{}", FailureKind::NotFound),
        (&[root, "read"], b"", FailureKind::Invalid),
        (&[root, "read"], unknown, FailureKind::Invalid),
        (&[root, "read"], br#"{"path":"a"} {}"#, FailureKind::Invalid),
    ];
    for (arguments, input, kind) in cases {
        let (code, output) = run(arguments, input);
        assert_eq!(code, Some(1));
        let answer: Answer<Value> = serde_json::from_slice(&output).unwrap();
        let Answer::Error(failure) = answer else {
            panic!("{arguments:?} was done");
        };
        assert_eq!(failure.kind, kind, "{arguments:?}: {}", failure.message);
    }
    for verb in Verb::ALL {
        let (code, output) = run(&[root, verb.name()], b"7");
        assert_eq!(code, Some(1));
        assert!(output.starts_with(b"{\"error\""));
    }
    let (code, output) = run(&[root, "write"], &vec![b' '; MAX_REQUEST + 1]);
    assert_eq!(code, Some(1));
    assert!(output.starts_with(br#"{"error":{"kind":"too_large""#));
}

#[test]
fn nobody_is_waited_for() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let started = Instant::now();
    let longer = json!({"path": "fifo", "text": "x", "mode": "append"});
    for (verb, request) in [
        ("read", json!({"path": "fifo"})),
        ("write", json!({"path": "fifo", "text": "x"})),
        ("write", longer),
        ("edit", json!({"path": "fifo", "old": "x", "new": "y"})),
    ] {
        assert_eq!(kind(root, verb, &request), "invalid", "{verb}");
    }
    let found = ok(root, "search", &json!({"pattern": "x"}));
    assert_eq!(found["files_searched"], 0);
    assert!(started.elapsed() < Duration::from_secs(30));
}

#[test]
fn answers_keep_to_their_bound() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path();
    fs::write(root.join("f"), "\u{1}\n".repeat(3 << 20)).unwrap();
    let read = ok(root, "read", &json!({"path": "f", "length": 2 << 20}));
    assert_eq!(read["truncated"], true);
    let request = json!({"pattern": ".", "limit": 5_000, "context": 50});
    let found = ok(root, "search", &request);
    assert_eq!(found["truncated"], true);
}
