//! Files that are read, files that are refused, and that no bytes at all make a panic.

use proptest::prelude::*;

use super::*;
use crate::policy::SecretSource;
use crate::policy::network::Protocol;

const HOME: &str = "/srv/person";

fn parse(text: &str) -> Result<Document, DocumentError> {
    let source = Source {
        file: "p.toml",
        home: Some(Path::new(HOME)),
    };
    Document::parse(text.as_bytes(), source)
}

#[test]
fn a_whole_file_is_read() {
    let text = r#"
extends = "standard"
[files]
hide  = [".env*", "**/*.pem", "secrets/**"]
write = ["src/**", "tests/**"]
read_only = ["src/gen"]
export = ["**/*.py"]
[[files.mount]]
host = "~/data"
inside = "/data"
[[files.mount]]
host = "/srv/cache"
inside = "/cache"
write = true
[network]
allow = [
  "preset:npm",
  "GET api.example/repos/**",
  "tcp db.internal:5432",
  { rule = "big.example", addresses = ["10.0.0.0/8"], per_minute = 60, upload = "10M", download = "1G", time = "10m" },
]
deny = ["api.example/admin/**"]
cache = true
[network.mock]
"pay.example" = "http://127.0.0.1:9000"
[secrets.API_TOKEN]
from = "command:pass show api"
hosts = ["api.example", "*.api.example"]
methods = ["GET", "POST"]
path = "/repos/**"
header = "Authorization: token {}"
[secrets.OTHER]
from = "file:~/token"
hosts = ["o.example"]
[env]
pass = ["LANG", "TERM"]
set = { CI = "1" }
[limits]
memory = "4G"
time = "30m"
processes = 100
disk = "none"
"#;
    let document = parse(text).unwrap();
    assert_eq!(document.extends[0].text, "standard");
    assert_eq!(document.hide[2].from.line, 4);
    assert_eq!(document.mounts[0].host, Path::new("/srv/person/data"));
    assert!(document.mounts[1].writable);
    let allow = document.allow.as_ref().unwrap();
    assert!(matches!(&allow[0], Grant::Preset(line) if line.text == "npm"));
    let Grant::Rule(big) = &allow[3] else {
        panic!("a rule")
    };
    assert_eq!(big.budget.upload_bytes, Some(10 << 20));
    assert_eq!(big.budget.seconds, Some(600));
    assert_eq!(big.from.line, 20);
    let Grant::Rule(tcp) = &allow[2] else {
        panic!("a rule")
    };
    assert_eq!(tcp.protocol, Protocol::Tcp);
    let token = &document.secrets[0];
    assert_eq!(token.source, SecretSource::Command("pass show api".into()));
    let file = SecretSource::File("/srv/person/token".into());
    assert_eq!(document.secrets[1].source, file);
    assert_eq!(document.secrets[1].header, "Authorization: Bearer {}");
    assert_eq!(document.limits[&Limit::Disk].most, None);
    assert_eq!(document.limits[&Limit::Memory].most, Some(4 << 30));
}

#[test]
fn a_problem_has_a_place_and_a_caret() {
    let error = parse("[files]\nhide = [\".env\"]\n[network]\nalow = []\n").unwrap_err();
    let expected = "\
p.toml:4:1: `alow` is not known here; known are allow, deny, cache, mock
  4 | alow = []
    | ^^^^";
    assert_eq!(error.to_string(), expected);
    let error = parse("[limits]\nmemory = \"4X\" # x").unwrap_err();
    let expected = "\
p.toml:2:10: `4X` is not a size such as `512M`, `4G` or `none`
  2 | memory = \"4X\" # x
    |          ^^^^";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn what_is_wrong_is_refused() {
    for (text, line, column, word) in [
        ("extend = 'standard'", 1, 1, "not known"),
        ("[files]\nhide = '.env'", 2, 8, "a list"),
        ("[files]\nhide = ['a[']", 2, 9, "not a pattern"),
        (
            "[files]\nwrite = ['**/*.py']",
            2,
            10,
            "`export` takes any pattern",
        ),
        ("[files]\nread_only = ['../x']", 2, 14, "without `..`"),
        (
            "[[files.mount]]\nhost = 'data'\ninside = '/d'",
            2,
            8,
            "absolute",
        ),
        ("[[files.mount]]\nhost = '/data'", 1, 1, "`inside`"),
        (
            "[network]\nallow = ['https://a.example']",
            2,
            10,
            "a rule is",
        ),
        ("[network]\nallow = ['127.1']", 2, 10, "no host"),
        ("[network]\nallow = ['get a.example']", 2, 10, "capital"),
        ("[network]\nallow = ['preset:']", 2, 10, "preset:NAME"),
        ("[network]\nallow = ['preset:../x']", 2, 10, "preset:NAME"),
        (
            "[network]\nallow = [{ rule = 'a.example', per_min = 1 }]",
            2,
            32,
            "not known",
        ),
        ("[network]\nallow = [{ per_minute = 1 }]", 2, 10, "`rule`"),
        (
            "[network]\nallow = [{ rule = 'a.example', per_minute = 0 }]",
            2,
            45,
            "above 0",
        ),
        (
            "[network]\nallow = [{ rule = '*', addresses = ['10.0.0.0/8'] }]",
            2,
            10,
            "named",
        ),
        (
            "[network]\ndeny = [{ rule = 'a.example', per_minute = 1 }]",
            2,
            9,
            "no budget",
        ),
        (
            "[network.mock]\n'a.example' = 'http://b.example:1'",
            2,
            15,
            "double",
        ),
        (
            "[network.mock]\n'a.example' = 'http://192.0.2.1:1'",
            2,
            15,
            "double",
        ),
        (
            "[secrets.T]\nfrom = 'plain'\nhosts = ['a.example']",
            2,
            8,
            "`env:NAME`",
        ),
        ("[secrets.T]\nfrom = 'env:T'\nhosts = ['*']", 3, 10, "named"),
        ("[secrets.T]\nfrom = 'env:T'", 1, 1, "`hosts`"),
        ("[secrets.T]\nhosts = ['a.example']", 1, 1, "`from`"),
        (
            "[secrets.'A B']\nfrom = 'env:T'\nhosts = ['a.b']",
            1,
            10,
            "name of a variable",
        ),
        (
            "[secrets.T]\nfrom='env:T'\nhosts=['a.b']\nheader='X'",
            4,
            8,
            "`{}`",
        ),
        (
            "[secrets.T]\nfrom='env:T'\nhosts=['a.b']\nheader='X: {} {}'",
            4,
            8,
            "`{}`",
        ),
        (
            "[secrets.T]\nfrom='env:T'\nhosts=['a.b']\nmethods=['get']",
            4,
            10,
            "capital",
        ),
        (
            "[secrets.T]\nfrom='env:T'\nhosts=['a.b']\nmethods=['tcp']",
            4,
            10,
            "capital",
        ),
        (
            "env.pass=['T']\n[secrets.T]\nfrom='env:T'\nhosts=['a.b']",
            3,
            1,
            "and a variable",
        ),
        ("[env]\npass = ['A=B']", 2, 9, "name of a variable"),
        ("[env]\nset = { A = 1 }", 2, 13, "a string"),
        ("[limits]\nprocesses = 'none'", 2, 13, "a count"),
        ("[limits]\nprocesses = 3", 2, 13, "a count"),
        ("[limits]\njournal = 3", 2, 1, "not known"),
        ("[limits]\nmemory = -1", 2, 10, "a size"),
        ("[limits]\nmemory = true", 2, 10, "a number"),
        ("[limits]\nmemory = 1\nmemory = 2", 3, 1, "duplicate"),
        ("a = [", 1, 6, ""),
        ("files = 1", 1, 9, "a table"),
    ] {
        let error = parse(text).expect_err(text);
        let problem = &error.0[0];
        assert!(problem.message.contains(word), "{text}: {error}");
        assert_eq!(
            (problem.line, problem.column),
            (line, column),
            "{text}: {error}"
        );
    }
}

/// cfg-008: what is shown is what is read.
#[test]
fn characters_that_hide_something_are_refused() {
    for text in [
        "[files]\nhide = []\0\n[network]\nallow = ['*']",
        "[files] # \u{1b}[2K\n",
        "[files] # \u{202e}\n",
        "[files] # \u{200b}\n",
        "[files]\rhide = []",
        "[env]\npass = ['\u{7f}']",
        "[files]\nhide = [\"a\\u0000b\"]",
        "[files]\nhide = [\"a\\u202eb\"]",
        "[env]\nset = { A = \"a\\u0000\" }",
        "[network]\nallow = [\"a.example\\n\"]",
    ] {
        let error = parse(text).expect_err(text);
        let shown = error.to_string();
        assert!(!shown.contains(['\0', '\u{1b}', '\u{202e}']), "{shown}");
    }
    assert!(parse("[files]\r\nhide = []\r\n\t# tab").is_ok());
    let bytes = [b"[files]\n# ".as_slice(), &[0xff, 0xfe]].concat();
    let source = Source {
        file: "p",
        home: None,
    };
    let error = Document::parse(&bytes, source).unwrap_err();
    assert_eq!((error.0[0].line, error.0[0].column), (2, 3));
    let large = vec![b'#'; MAX_BYTES + 1];
    assert!(Document::parse(&large, source).is_err());
}

#[test]
fn long_lines_are_cut_and_many_problems_are_bounded() {
    let line = format!("# {}\nx = [{}'", "y".repeat(4000), "'a', ".repeat(2000));
    let shown = parse(&line).unwrap_err().to_string();
    assert!(shown.len() < 1000, "{}", shown.len());
    let many: String = (0..500).map(|n| format!("k{n} = 1\n")).collect();
    assert_eq!(parse(&many).unwrap_err().0.len(), problem::MAX_PROBLEMS);
    let list = "'a.example', ".repeat(1001);
    assert!(parse(&format!("[network]\nallow = [{list}]")).is_err());
    let deep = format!("extends = {}", "[".repeat(100_000));
    assert!(parse(&deep).is_err());
}

fn piece() -> impl Strategy<Value = String> {
    let words = [
        "extends",
        "files",
        "hide",
        "write",
        "mount",
        "host",
        "inside",
        "network",
        "allow",
        "deny",
        "rule",
        "addresses",
        "per_minute",
        "mock",
        "secrets",
        "from",
        "hosts",
        "header",
        "env",
        "pass",
        "set",
        "limits",
        "memory",
        "time",
        "=",
        "= ",
        "[",
        "]",
        "[[",
        "]]",
        "{",
        "}",
        ",",
        "'",
        "\"",
        "\n",
        ".",
        "'standard'",
        "'GET a.b/**'",
        "'preset:x'",
        "1",
        "true",
        "'4G'",
        "'env:X'",
        "'~/x'",
        "\\u0000",
        "é",
        "1979-05-27",
        "0x1",
        "1e400",
        "-0",
        "#",
    ];
    prop_oneof![
        4 => prop::sample::select(words.to_vec()).prop_map(str::to_owned),
        1 => any::<String>(),
    ]
}

proptest! {
    #[test]
    fn no_text_makes_a_panic(pieces in prop::collection::vec(piece(), 0..40)) {
        if let Err(error) = parse(&pieces.concat()) {
            prop_assert!(!error.0.is_empty());
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn no_bytes_make_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let source = Source { file: "p", home: None };
        let _ = Document::parse(&bytes, source).map_err(|error| error.to_string());
    }
}
