//! Plans that are read, and plans that are refused with a reason and a place.

use super::*;
use crate::ByteText;
use crate::task::Stage;

const GOOD: &str = r#"
name  = "responses-api"
brief = "MIGRATION.md"
agent = "claude"
[split]
files = "src/**/*.py"
matching = 'openai\.ChatCompletion'
per_task = 10
keep_together = "directory"
first = ["src/types.py"]
[checks]
baseline = "pytest -q"
final = ["ruff check .", "pytest -q"]
[loop]
iterations = 4
attempts = 1
[run]
parallel = 8
stage = "needed"
needs = ["pyproject.toml"]
[limits]
time = "30m"
processes = 64
"#;

#[test]
fn a_plan_is_read() {
    let plan = Plan::parse(GOOD.as_bytes(), "plan.toml").unwrap();
    assert_eq!(plan.name, "responses-api");
    assert_eq!(plan.brief.text, "MIGRATION.md");
    assert_eq!(plan.agent, Agent::Preset("claude".to_owned()));
    assert_eq!(plan.split.files[0].text, "src/**/*.py");
    assert_eq!(plan.split.per_task, Some(10));
    assert_eq!(plan.split.keep, Keep::Directory);
    assert_eq!(plan.checks.last, ["ruff check .", "pytest -q"]);
    assert_eq!(plan.rounds.iterations, 4);
    assert_eq!(plan.run.stage, Stage::Needed);
    assert_eq!(plan.limits[&Limit::Time], "30m");
    assert_eq!(plan.limits[&Limit::Processes], "64");
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    let edit = |from: &str, to: &str| {
        assert!(GOOD.contains(from), "{from}");
        let text = GOOD.replace(from, to);
        Plan::parse(text.as_bytes(), "plan.toml")
            .unwrap_err()
            .to_string()
    };
    for (from, to, parts) in [
        (
            "brief = \"MIGRATION.md\"\n",
            "",
            &["1:1: a plan has a brief"][..],
        ),
        (
            "name  = \"responses-api\"",
            "name = \"a b\"",
            &["2:8: a name has letters"],
        ),
        (
            "name  = \"responses-api\"",
            "name = \"../x\"",
            &["2:8: a name has letters"],
        ),
        (
            "brief = \"MIGRATION.md\"",
            "brief = \"../x\"",
            &["3:9: a path below the plan's"],
        ),
        (
            "brief = \"MIGRATION.md\"",
            "brief = \"/etc/passwd\"",
            &["3:9: a path below"],
        ),
        ("agent = \"claude\"\n", "", &["a plan has an agent"]),
        (
            "agent = \"claude\"",
            "agent = \"./agent.sh\"",
            &["4:9: `agent` is the name of a preset"],
        ),
        (
            "agent = \"claude\"",
            "agent = \"c\"\ncommand = [\"a\"]",
            &["either `agent` or `command`"],
        ),
        (
            "agent = \"claude\"",
            "command = []",
            &["4:11: a command is a list of words"],
        ),
        (
            "agent = \"claude\"",
            "command = \"x\"",
            &["4:11: a list is meant"],
        ),
        (
            "per_task = 10",
            "per_task = 0",
            &["8:12: a number from 1 to"],
        ),
        (
            "per_task = 10",
            "per_taks = 10",
            &["8:1: `per_taks` is not known here", "^^^^^^^^"],
        ),
        (
            "\"directory\"",
            "\"folder\"",
            &["`folder` is none of `tests`, `directory`, `nothing`"],
        ),
        (
            "\"src/**/*.py\"",
            "\"src/[\"",
            &["6:9: `src/[` is not a pattern"],
        ),
        (
            "\"src/**/*.py\"",
            "[]",
            &["6:9: an empty list selects nothing"],
        ),
        (
            "ChatCompletion'",
            "ChatCompletion('",
            &["7:12: it is no regular expression"],
        ),
        (
            "files = ",
            "command = \"x\"\nby = \"path\"\nfiles = ",
            &["either `by` or `command`"],
        ),
        (
            "stage = \"needed\"",
            "stage = \"whole\"",
            &["`needs` goes with"],
        ),
        ("time = \"30m\"", "time = \"soon\"", &["22:8: "]),
        (
            "time = \"30m\"",
            "journal = 1",
            &["22:1: `journal` is not known here"],
        ),
        (
            "[checks]",
            "[cheks]",
            &["`cheks` is not known here; known are name, brief"],
        ),
    ] {
        let error = edit(from, to);
        for part in parts {
            assert!(error.contains(part), "{to}:\n{error}");
        }
    }
    let nothing = Plan::parse(
        b"name = \"x\"\nbrief = \"b\"\nagent = \"c\"\n[split]\n",
        "p",
    );
    let error = nothing.unwrap_err().to_string();
    assert!(error.contains("a split says which files"), "{error}");
    let hidden = Plan::parse("name = \"x\u{202e}\"".as_bytes(), "p")
        .unwrap_err()
        .to_string();
    assert!(hidden.contains("not shown as it is"), "{hidden}");
}

#[test]
fn an_edit_is_told_as_what_it_changes() {
    let task = |id: &str, files: &[&str]| {
        let files = files.iter().map(|path| ByteText::from(*path)).collect();
        (id.to_owned(), files)
    };
    let old = [
        task("1", &["a", "b"]),
        task("2", &["c", "d"]),
        task("3", &["e"]),
    ];
    let new = [
        task("1", &["a", "b"]),
        task("4", &["c"]),
        task("5", &["d", "f"]),
    ];
    let found = diff(&old, &new);
    assert_eq!(found.same, ["1"]);
    assert_eq!(found.added, ["4", "5"]);
    assert_eq!(found.removed, ["2", "3"]);
    assert_eq!(found.added_files, [ByteText::from("f")]);
    assert_eq!(found.removed_files, [ByteText::from("e")]);
    let moved: Vec<(String, &str, &str)> = found
        .moved
        .iter()
        .map(|moved| (moved.path.to_text(), &*moved.from, &*moved.to))
        .collect();
    assert_eq!(
        moved,
        [("c".to_owned(), "2", "4"), ("d".to_owned(), "2", "5")]
    );
    assert!(diff(&old, &old).is_empty() && !found.is_empty());
}

#[test]
fn the_example_is_a_plan() {
    let text = include_bytes!("../../../../examples/plan.toml");
    let plan = Plan::parse(text, "plan.toml").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(plan.split.by, By::Dependencies);
    assert_eq!(plan.split.last.len(), 2);
    let budget = Budget {
        time_seconds: Some(7200),
        tasks: Some(200),
        tokens: Some(5_000_000),
        cost_micros: Some(25_500_000),
    };
    assert_eq!(plan.budget, budget);
}

#[test]
fn what_is_no_budget_is_refused() {
    let head = "name='a'\nbrief='B.md'\ncommand=['x']\n[split]\nfiles='src'\n";
    for (rest, part) in [
        ("[budget]\ntime='soon'\n", "soon"),
        ("[budget]\ntasks=0\n", "above 0"),
        ("[budget]\ntokens=-1\n", "above 0"),
        ("[budget]\ntokens=1.5\n", "a number"),
        ("[budget]\ncost='5 USD'\n", "no sum of dollars"),
        ("[budget]\ncost=1e9\n", "no sum of dollars"),
        ("[budget]\ncost=nan\n", "no sum of dollars"),
        ("[budget]\ncost=-3\n", "no sum of dollars"),
        ("[budget]\nmoney=1\n", "money"),
        ("[loop]\nattempts=65\n", "64"),
    ] {
        let text = format!("{head}{rest}");
        let error = Plan::parse(text.as_bytes(), "plan.toml").unwrap_err();
        let error = error.to_string();
        assert!(error.contains(part), "{rest}: {error}");
    }
}
