//! Reads nextest's JUnit report: one test case per test, with its time and output.

use std::time::Duration;

use anyhow::{Context, Result};
use roxmltree::{Document, Node};

/// A test that ran.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The test program, as nextest names it: `package` or `package::program`.
    pub program: String,
    pub name: String,
    pub time: Duration,
    pub failed: bool,
    /// Standard output, then standard error.
    pub output: String,
}

/// All tests of a report.
pub fn parse(text: &str) -> Result<Vec<Case>> {
    let document = Document::parse(text).context("the report of nextest is not XML")?;
    let cases = document
        .descendants()
        .filter(|node| node.has_tag_name("testcase"));
    cases.map(case).collect()
}

fn case(node: Node<'_, '_>) -> Result<Case> {
    let attribute = |name: &str| {
        node.attribute(name)
            .with_context(|| format!("a test case of the report has no `{name}`"))
    };
    let seconds: f64 = attribute("time")?.parse().context("not a time")?;
    let text_of = |tag: &str| {
        let children = node.children().filter(|child| child.has_tag_name(tag));
        children
            .filter_map(|child| child.text())
            .collect::<String>()
    };
    Ok(Case {
        program: attribute("classname")?.to_owned(),
        name: attribute("name")?.to_owned(),
        time: Duration::try_from_secs_f64(seconds).context("not a time")?,
        failed: node
            .children()
            .any(|child| child.has_tag_name("failure") || child.has_tag_name("error")),
        output: text_of("system-out") + &text_of("system-err"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_of_nextest_is_parsed() {
        let report = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="2" failures="1" errors="0">
  <testsuite name="ringfence::integration" tests="2" failures="1">
    <testcase name="run::a" classname="ringfence::integration" time="1.500">
      <system-out>SKIPPED a: no &lt;b&gt;</system-out>
    </testcase>
    <testcase name="run::b" classname="ringfence::integration" time="0.250">
      <failure type="test failure"><![CDATA[thread panicked]]></failure>
      <system-out>out
</system-out>
      <system-err>err</system-err>
    </testcase>
  </testsuite>
</testsuites>"#;
        let cases = parse(report).unwrap();
        let rows: Vec<_> = cases
            .iter()
            .map(|case| {
                (
                    case.name.as_str(),
                    case.time.as_millis(),
                    case.failed,
                    case.output.as_str(),
                )
            })
            .collect();
        assert_eq!(
            rows,
            [
                ("run::a", 1500, false, "SKIPPED a: no <b>"),
                ("run::b", 250, true, "out\nerr"),
            ]
        );
        assert_eq!(cases[0].program, "ringfence::integration");
    }

    #[test]
    fn damaged_reports_are_errors() {
        for report in [
            "",
            "<testsuites>",
            r#"<a><testcase name="x" classname="y"/></a>"#,
            r#"<a><testcase name="x" classname="y" time="-1"/></a>"#,
        ] {
            assert!(parse(report).is_err(), "{report}");
        }
    }
}
