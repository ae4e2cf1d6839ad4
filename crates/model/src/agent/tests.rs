//! Files of agents as tables, and reports as an agent may write them.

use super::*;

fn read(text: &str) -> Result<AgentText, String> {
    AgentText::parse(text.as_bytes(), "a.toml", None).map_err(|error| error.to_string())
}

#[test]
fn a_file_is_read_whole() {
    let text = r#"
about = "An agent"
command = ["agent", "--json", "{brief}"]
needs = ["git"]
keys = ["A_KEY"]
base_url = { variable = "A_BASE_URL", usual = "https://api.example/v1" }
[network]
allow = ["api.example:443"]
[env]
set = { QUIET = "1" }
[secrets.A_KEY]
from = "env:A_KEY"
hosts = ["api.example"]
[[home]]
path = ".agent/config.toml"
text = '''
base = "{base_url}"
'''
[result]
input_tokens = ["end:usage.in", "end:usage.cached"]
cost_usd = "end:cost"
"#;
    let preset = read(text).unwrap().finish("mine").unwrap();
    assert_eq!(preset.command, ["agent", "--json", "{brief}"]);
    assert_eq!(preset.keys, ["A_KEY"]);
    assert_eq!(preset.home[0].path, Path::new(".agent/config.toml"));
    assert_eq!(preset.grants.secrets.len(), 1);
    assert_eq!(preset.grants.set["QUIET"].value.as_deref(), Some("1"));
    assert_eq!(preset.report.unwrap().input_tokens.len(), 2);
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    for (text, place, message) in [
        ("comand = ['a']", "a.toml:1:1", "`comand` is not known here"),
        ("command = []", "a.toml:1:11", "a command has a program"),
        ("command = ['../a']", "a.toml:1:11", "neither the name"),
        ("command = ['{brief}']", "a.toml:1:11", "neither the name"),
        ("command = [\"a\", \"\\u001b[2J\"]", "a.toml:1:17", "hidden"),
        ("command = ['/a/../b']", "a.toml:1:11", "neither the name"),
        ("keys = ['A=B']", "a.toml:1:9", "not the name of a variable"),
        ("extends = '../x'", "a.toml:1:11", "the name of an agent"),
        (
            "[[home]]\npath = '../.ssh/config'\ntext = ''",
            "a.toml:2:8",
            "below the home",
        ),
        (
            "[[home]]\npath = '/etc/x'\ntext = ''",
            "a.toml:2:8",
            "below the home",
        ),
        (
            "[[home]]\npath = 'a//b'\ntext = ''",
            "a.toml:2:8",
            "below the home",
        ),
        (
            "[[home]]\npath = 'a/'\ntext = ''",
            "a.toml:2:8",
            "below the home",
        ),
        ("[[home]]\npath = 'a'", "a.toml:1:1", "`path` and `text`"),
        (
            "base_url = { variable = 'A', usual = 'http://a.example' }",
            "a.toml:1:38",
            "https",
        ),
        ("[result]\ncounts = 'some'", "a.toml:2:10", "`parts` or"),
        ("[result]\ncost_usd = 'a..b'", "a.toml:2:12", "a place is"),
        ("[result]\ncost_usd = ':a'", "a.toml:2:12", "a place is"),
        (
            "[secrets.K]\nfrom = 'env:K'\nhosts = ['*']",
            "a.toml:3:10",
            "hosts that are named",
        ),
    ] {
        let error = read(text).unwrap_err();
        assert!(
            error.contains(place) && error.contains(message),
            "{text}: {error}"
        );
    }
    let error = read("about = 'x'").unwrap().finish("x").unwrap_err();
    assert!(error.to_string().contains("has a command"), "{error}");
}

#[test]
fn one_file_stands_over_another() {
    let base = read(
        "about = 'base'\ncommand = ['a', 'x']\nagain = ['a', 'y']\nkeys = ['K']\n\
         [env]\nset = { A = '1', B = '1' }\n[[home]]\npath = 'c'\ntext = 'base'\n\
         [[home]]\npath = 'd'\ntext = 'base'",
    )
    .unwrap();
    let own = read("extends = 'a'\n[env]\nset = { B = '2' }\n[[home]]\npath = 'c'\ntext = 'own'")
        .unwrap();
    let both = own.over(base.clone()).finish("a").unwrap();
    assert_eq!(both.command, ["a", "x"]);
    assert_eq!(both.again.as_deref().unwrap(), ["a", "y"]);
    let value = |name: &str| both.grants.set[name].value.clone().unwrap();
    assert_eq!((value("A"), value("B")), ("1".into(), "2".into()));
    let texts: Vec<&str> = both.home.iter().map(|file| file.text.as_str()).collect();
    assert_eq!(texts, ["base", "own"]);
    // Words of a later round are those of another command.
    let other = read("command = ['b']").unwrap().over(base);
    assert_eq!(other.finish("a").unwrap().again, None);
}

fn report(text: &str) -> Report {
    let text = format!("command = ['a']\n[result]\n{text}");
    read(&text).unwrap().finish("a").unwrap().report.unwrap()
}

#[test]
fn numbers_of_all_lines_are_added_and_the_last_words_stay() {
    let report = report(
        "input_tokens = ['end:usage.in', 'end:usage.cached']\noutput_tokens = 'end:usage.out'\n\
         cost_usd = 'end:cost'\nsession = 'id'\ntext = ['said:text', 'end:text']",
    );
    let lines = [
        "a warning",
        r#"{"type":"begin","id":"s1","usage":{"in":9000}}"#,
        r#"{"type":"said","text":"first"}"#,
        r#"{"type":"end","usage":{"in":100,"cached":5,"out":7},"cost":0.25}"#,
        r#"{"type":"end","usage":{"in":1},"cost":0.000001,"text":"last"}"#,
        r#"[{"type":"end","usage":{"in":100}}]"#,
    ];
    let usage = report.read("a", lines.iter().map(|line| line.as_bytes()));
    let expected = Usage {
        agent: "a".to_owned(),
        input_tokens: Some(106),
        output_tokens: Some(7),
        cost_usd_micros: Some(250_001),
        session: Some("s1".to_owned()),
        text: Some("last".to_owned()),
    };
    assert_eq!(usage, expected);
}

#[test]
fn totals_count_once_for_each_session() {
    let report = report("counts = 'totals'\ninput_tokens = 'n'\nsession = 's'");
    let lines = [
        r#"{"s":"a"}"#,
        r#"{"n":400}"#,
        r#"{"s":"a"}"#,
        r#"{"n":500}"#,
        r#"{"s":"b"}"#,
        r#"{"n":20}"#,
        r#"{"n":30}"#,
    ];
    let usage = report.read("a", lines.iter().map(|line| line.as_bytes()));
    assert_eq!(usage.input_tokens, Some(530));
}

#[test]
fn a_report_that_lies_stays_within_bounds() {
    let report = report(
        "input_tokens = 'a.b'\noutput_tokens = 'n'\ncost_usd = 'c'\nsession = 's'\ntext = 't'",
    );
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let long = format!(
        "{{\"s\":\"{}\",\"t\":\"{}\"}}",
        "ä".repeat(1000),
        "é".repeat(100_000)
    );
    for (line, expected) in [
        ("{\"n\":-5,\"c\":-1}", None),
        ("{\"n\":1e300,\"c\":1e300}", Some(1_000_000_000_000)),
        ("{\"n\":\"5\",\"c\":\"0.1\",\"s\":7,\"t\":[]}", None),
        ("{\"n\":1.5,\"a\":{\"b\":null}}", None),
        ("{\"a\":[1,2],\"a.b\":3}", None),
        (deep.as_str(), None),
        ("{", None),
        ("{\"c\":0.1}", Some(100_000)),
    ] {
        let usage = report.read("x", [line.as_bytes()].into_iter());
        assert_eq!(usage.cost_usd_micros, expected, "{line:.80}");
        assert_eq!(usage.is_nothing(), expected.is_none(), "{line:.80}");
    }
    let usage = report.read("x", [long.as_bytes()].into_iter());
    assert!(usage.session.unwrap().len() <= 200);
    assert!(usage.text.unwrap().len() <= 8 << 10);
    for line in [
        "{\"n\":1e300}",
        "{\"n\":18446744073709551615}",
        "{\"n\":1e13}",
    ] {
        let usage = report.read("x", [line.as_bytes()].into_iter());
        assert_eq!(usage.output_tokens, Some(1_000_000_000_000), "{line}");
    }
    let line = b"{\"n\":1000000000000,\"c\":1000000}".as_slice();
    let usage = report.read("x", std::iter::repeat_n(line, 100));
    assert_eq!(usage.output_tokens, Some(1_000_000_000_000));
    assert_eq!(usage.cost_usd_micros, Some(1_000_000_000_000));
}
