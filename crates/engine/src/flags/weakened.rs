//! Tests that were edited, deleted, skipped or made to say yes; checks that do not fail any more.

use std::collections::BTreeMap;

use memchr::memmem;
use ringfence_model::ByteText;
use ringfence_model::changes::{Change, ChangeKind};
use ringfence_model::flag::{Evidence as Rests, FlagKind, Severity};

use super::scan::{Line, Sign};
use super::{Found, line_of, path, path_with, paths};

/// What a mark in a line means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mark {
    Skip,
    AlwaysTrue,
    Assertion,
    NeverFails,
}

/// Where a mark counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    /// In files that look like tests.
    Tests,
    /// In all files of the language: tests stand among the code.
    Code,
    /// Where checks are described.
    Checks,
}

type Row = (
    &'static [&'static str],
    Where,
    Mark,
    &'static [&'static str],
);

const JS: &[&str] = &["js", "jsx", "ts", "tsx", "mjs", "cjs", "mts", "cts"];

#[rustfmt::skip]
const TABLE: &[Row] = &[
    (&["py"], Where::Tests, Mark::Skip, &["@pytest.mark.skip", "@pytest.mark.xfail", "pytest.skip(", "pytest.xfail(", "@unittest.skip", "@skip", "self.skipTest(", "unittest.SkipTest", "@unittest.expectedFailure", "__test__ = False", "pytestmark = pytest.mark.skip", "collect_ignore"]),
    (&["rs"], Where::Code, Mark::Skip, &["#[ignore", "#[cfg_attr(any(), test)]", "#[cfg(any())]"]),
    (JS, Where::Tests, Mark::Skip, &["it.skip(", "test.skip(", "describe.skip(", "context.skip(", "suite.skip(", "it.skip.each", "test.skip.each", "xit(", "xtest(", "xdescribe(", "xcontext(", "it.todo(", "test.todo(", "test.fixme(", "it.only(", "test.only(", "describe.only(", "fit(", "fdescribe(", "this.skip(", "t.skip(", ".skipIf(", "pending(", "skip: true", "skip:true", "skip: '", "skip: \"", "todo: true", "todo:true", "todo: '", "todo: \"", "only: true", "only:true"]),
    (&["go"], Where::Tests, Mark::Skip, &["t.Skip(", "t.SkipNow(", "t.Skipf(", "b.Skip(", "//go:build ignore", "// +build ignore"]),
    (&["java", "kt", "kts", "groovy", "scala"], Where::Tests, Mark::Skip, &["@Disabled", "@Ignore", "assumeTrue(false", "ignore(\""]),
    (&["cs"], Where::Tests, Mark::Skip, &["[Ignore", "Skip = \"", "Assert.Ignore("]),
    (&["rb"], Where::Tests, Mark::Skip, &["skip \"", "skip '", "skip(", "xit ", "xit(", "xdescribe ", "xcontext ", "pending ", "pending("]),
    (&["php"], Where::Tests, Mark::Skip, &["markTestSkipped(", "markTestIncomplete(", "->skip("]),
    (&["swift"], Where::Tests, Mark::Skip, &["XCTSkip(", ".disabled("]),
    (&["c", "cc", "cpp", "cxx", "h", "hpp"], Where::Tests, Mark::Skip, &["GTEST_SKIP(", "DISABLED_", "BOOST_AUTO_TEST_CASE_EXPECTED_FAILURES"]),
    (&["ex", "exs"], Where::Tests, Mark::Skip, &["@tag :skip", "@moduletag :skip", "@tag skip:"]),
    (&["dart"], Where::Tests, Mark::Skip, &["skip: true", "skip: '"]),
    (&["sh", "bash", "bats"], Where::Tests, Mark::Skip, &["skip \"", "skip '"]),
    (&["py"], Where::Tests, Mark::AlwaysTrue, &["assert True", "assert 1 == 1", "assert 1\n", "assertTrue(True)", "assertEqual(1, 1)", "assert not False"]),
    (&["rs"], Where::Code, Mark::AlwaysTrue, &["assert!(true", "assert_eq!(1, 1", "assert_eq!(true, true"]),
    (JS, Where::Tests, Mark::AlwaysTrue, &["expect(true).toBe(true)", "expect(true).toEqual(true)", "expect(1).toBe(1)", "assert(true)", "assert.ok(true)", "expect(true).toBeTruthy("]),
    (&["java", "kt", "cs", "php", "swift", "rb"], Where::Tests, Mark::AlwaysTrue, &["assertTrue(true)", "Assert.True(true)", "assertEquals(1, 1)", "XCTAssertTrue(true)", "assert true", "Assert.IsTrue(true)"]),
    (&["c", "cc", "cpp", "h", "hpp"], Where::Tests, Mark::AlwaysTrue, &["EXPECT_TRUE(true)", "ASSERT_TRUE(true)", "assert(1)", "assert(true)"]),
    (&["py", "rb", "java", "kt", "cs", "php", "swift", "scala", "ex", "exs", "lua", "c", "cc", "cpp", "h", "hpp", "zig", "dart", "pl", "t"], Where::Tests, Mark::Assertion, &["assert", "Assert", "ASSERT_", "EXPECT_", "expect(", "should", "must_", "CHECK(", "REQUIRE("]),
    (&["rs"], Where::Code, Mark::Assertion, &["assert!(", "assert_eq!(", "assert_ne!(", "assert_matches!("]),
    (JS, Where::Tests, Mark::Assertion, &["expect(", "assert(", "assert.", ".should.", "t.is(", "t.deepEqual("]),
    (&["go"], Where::Tests, Mark::Assertion, &["t.Error", "t.Fatal", "t.Fail", "assert.", "require."]),
    (&[], Where::Checks, Mark::NeverFails, &["|| true", "||true", "|| :", "|| exit 0", "|| echo", "set +e", "continue-on-error: true", "allow_failure: true", "ignore_errors: true", "--passWithNoTests", "-DskipTests", "-Dmaven.test.skip", "--no-verify", "--exit-zero", "if: false", "if: ${{ false }}", "when: never", "fail_ci_if_error: false", "soft_fail: true"]),
];

/// What was seen of one file.
#[derive(Debug, Default)]
struct Seen {
    added_lines: u64,
    removed_lines: u64,
    marks: BTreeMap<Mark, Count>,
}

#[derive(Debug, Default)]
struct Count {
    added: u64,
    removed: u64,
    /// Of added lines; of removed ones for assertions.
    evidence: Vec<Option<Rests>>,
}

/// BOUND: evidence of one mark in one file.
const KEPT: usize = 5;

/// Counts what the lines of each file add and take away: a mark that only moved is none.
#[derive(Debug, Default)]
pub struct Weakened {
    files: BTreeMap<ByteText, Seen>,
    current: Option<Current>,
}

/// The file whose lines are read, and what is looked for in it.
#[derive(Debug)]
struct Current {
    path: ByteText,
    extension: String,
    rows: Vec<&'static Row>,
    seen: Seen,
}

impl Current {
    fn of(path: &ByteText) -> Self {
        let bytes = path.as_bytes();
        let (test, checks) = (paths::is_test(bytes), is_checks(bytes));
        let extension = paths::extension(bytes);
        let rows = TABLE
            .iter()
            .filter(|(extensions, place, ..)| match place {
                Where::Tests => test && extensions.contains(&extension.as_str()),
                Where::Code => extensions.contains(&extension.as_str()),
                Where::Checks => checks,
            })
            .collect();
        Self {
            path: path.clone(),
            extension,
            rows,
            seen: Seen::default(),
        }
    }
}

impl Weakened {
    pub(super) fn line(&mut self, line: &Line<'_>) {
        let path = &line.change.path;
        if self.current.as_ref().is_none_or(|now| now.path != *path) {
            self.settle();
            self.current = Some(Current::of(path));
        }
        let Some(Current {
            rows,
            extension,
            seen,
            ..
        }) = &mut self.current
        else {
            return;
        };
        match line.sign {
            Sign::Removed => seen.removed_lines += 1,
            Sign::Added => seen.added_lines += 1,
        }
        if rows.is_empty() {
            return;
        }
        let text = line.text.trim_ascii_start();
        if is_comment(text, extension) {
            return;
        }
        for (_, _, mark, needles) in rows.iter() {
            if !needles.iter().any(|needle| holds(text, needle.as_bytes())) {
                continue;
            }
            let count = seen.marks.entry(*mark).or_default();
            let wanted = if *mark == Mark::Assertion {
                Sign::Removed
            } else {
                Sign::Added
            };
            match line.sign {
                Sign::Added => count.added += 1,
                Sign::Removed => count.removed += 1,
            }
            if line.sign == wanted && count.evidence.len() < KEPT {
                count.evidence.push(line_of(line, None));
            }
        }
    }

    /// The file that was read is over.
    fn settle(&mut self) {
        if let Some(now) = self.current.take() {
            self.files.insert(now.path, now.seen);
        }
    }

    pub(super) fn finish(mut self, changes: &[Change], found: &mut Found) {
        self.settle();
        for change in changes {
            let seen = self.files.get(&change.path);
            tests(change, seen, found);
            let Some(seen) = seen else { continue };
            for (mark, count) in &seen.marks {
                let (more, kind, severity, message) = match mark {
                    Mark::Skip => (
                        count.added > count.removed,
                        FlagKind::TestsSkipped,
                        Severity::Serious,
                        "a test is skipped, expected to fail, or alone to run",
                    ),
                    Mark::AlwaysTrue => (
                        count.added > count.removed,
                        FlagKind::ChecksWeakened,
                        Severity::Warning,
                        "an assertion that cannot fail was added",
                    ),
                    // All of them go with a file that is deleted, which is told by itself.
                    Mark::Assertion => (
                        count.removed > count.added && change.kind != ChangeKind::Deleted,
                        FlagKind::AssertionsRemoved,
                        Severity::Warning,
                        "a file has fewer assertions than before",
                    ),
                    Mark::NeverFails => (
                        count.added > count.removed,
                        FlagKind::ChecksWeakened,
                        Severity::Warning,
                        "a check was told not to fail",
                    ),
                };
                for evidence in count.evidence.iter().filter(|_| more) {
                    found.add(kind, severity, message, evidence.clone());
                }
            }
        }
    }
}

/// Tests that were edited or deleted.
fn tests(change: &Change, seen: Option<&Seen>, found: &mut Found) {
    let is_test = paths::is_test(change.path.as_bytes());
    match &change.kind {
        // An empty file holds no test.
        ChangeKind::Deleted if is_test && change.old.as_ref().is_none_or(|old| old.size > 0) => {
            found.add(
                FlagKind::TestsDeleted,
                Severity::Serious,
                "a file of tests was deleted",
                path(&change.path),
            )
        }
        ChangeKind::Renamed { from } if paths::is_test(from.as_bytes()) && !is_test => found.add(
            FlagKind::TestsDeleted,
            Severity::Serious,
            "a file of tests was given a name that no test has",
            path_with(from, format!("now {}", change.path)),
        ),
        ChangeKind::Modified | ChangeKind::Renamed { .. } if is_test => {
            let removed = change.binary || seen.is_some_and(|seen| seen.removed_lines > 0);
            let (severity, message) = if removed {
                (Severity::Warning, "tests that were there were edited")
            } else {
                (
                    Severity::Info,
                    "something was added to tests that were there",
                )
            };
            if removed || seen.is_some_and(|seen| seen.added_lines > 0) {
                found.add(
                    FlagKind::TestsChanged,
                    severity,
                    message,
                    path(&change.path),
                );
            }
        }
        _ => {}
    }
}

/// Where it is said what is checked.
fn is_checks(path: &[u8]) -> bool {
    let name = paths::name(path);
    paths::is_ci(path)
        || [
            "makefile",
            "gnumakefile",
            "justfile",
            "package.json",
            "tox.ini",
            "noxfile.py",
        ]
        .contains(&name.as_str())
        || ["taskfile.yml", "rakefile", "pytest.ini", "setup.cfg"].contains(&name.as_str())
        || (paths::extension(path) == "sh" && paths::is_test(path))
}

/// HOSTILE: an assertion that was commented out is none.
fn is_comment(text: &[u8], extension: &str) -> bool {
    let hash = [
        "py", "rb", "sh", "bash", "bats", "yml", "yaml", "ex", "exs", "pl", "t", "",
    ];
    text.starts_with(b"//") && !text.starts_with(b"//go:build")
        || text.starts_with(b"/*")
        || text.starts_with(b"* ")
        || (text.starts_with(b"#") && hash.contains(&extension))
}

/// A mark that does not begin within a word (`exit(` is not `xit(`, `model.fit(` not `fit(`).
fn holds(text: &[u8], needle: &[u8]) -> bool {
    let word = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_' || *b == b'.';
    let starts_word = needle.first().is_some_and(|b| b.is_ascii_alphanumeric());
    // A part of a longer name counts for assertions: `self.assertEqual`, `debug_assert!`.
    let anywhere =
        needle.starts_with(b"assert") || needle.starts_with(b"Assert") || needle == b"should";
    memmem::find_iter(text, needle)
        .any(|at| anywhere || !starts_word || at == 0 || !word(&text[at - 1]))
}

#[cfg(test)]
mod tests_of_rules {
    use super::super::tests::World;

    fn kinds(path: &str, how: &str, lines: &[&str]) -> Vec<String> {
        let mut kinds = World::of(&[(path, how)]).kinds(lines);
        // Told for each of these, and looked at elsewhere.
        kinds.retain(|kind| !kind.contains("tests_changed") && !kind.contains("runs_on_review"));
        kinds
    }

    #[test]
    fn skips_are_told() {
        for (path, line) in [
            ("tests/test_a.py", "+@pytest.mark.skip(reason=\"x\")"),
            ("tests/test_a.py", "+    pytest.skip(\"later\")"),
            ("src/lib.rs", "+    #[ignore]"),
            ("a.test.ts", "+it.skip('x', () => {"),
            ("a.test.ts", "+  xit('x', () => {"),
            ("a.spec.js", "+test.todo('x')"),
            ("a.test.mjs", "+test('x', { skip: true }, () => {"),
            ("a.test.mjs", "+test('x', {skip:true}, () => {"),
            ("a.test.mjs", "+  it('x', { todo: true }, () => {"),
            ("a.test.mjs", "+  skip: 'flaky',"),
            ("a_test.go", "+\tt.Skip(\"flaky\")"),
            ("FooTest.java", "+    @Disabled"),
            ("spec/a_spec.rb", "+  xit \"works\" do"),
        ] {
            assert_eq!(
                kinds(path, "modified", &[line]),
                ["serious tests_skipped"],
                "{line}"
            );
            let moved = line.replacen('+', "-", 1);
            assert_eq!(kinds(path, "modified", &[&moved, line]), [""; 0], "{line}");
        }
        for (path, line) in [
            ("tests/test_a.py", "+# pytest.skip( is not used here"),
            ("src/a.py", "+pytest.skip(\"not a test file\")"),
            ("a.test.ts", "+process.exit(1)"),
            ("a.test.ts", "+model.fit(x)"),
            ("a.test.ts", "+const page = { skip: 10, readonly: true }"),
            ("src/lib.rs", "+// #[ignore]"),
            ("docs/tests.md", "+use it.skip( with care"),
        ] {
            assert_eq!(kinds(path, "modified", &[line]), [""; 0], "{line}");
        }
    }

    #[test]
    fn assertions_that_go_or_cannot_fail_are_told() {
        let test = "tests/test_a.py";
        assert_eq!(
            kinds(test, "modified", &["-    assert x == 1"]),
            ["warning assertions_removed"]
        );
        // clm-003: commented out.
        assert_eq!(
            kinds(
                test,
                "modified",
                &["-    assert x == 1", "+    #assert x == 1"]
            ),
            ["warning assertions_removed"]
        );
        assert_eq!(
            kinds(test, "modified", &["-assert x == 1", "+assert x == 2"]),
            [""; 0]
        );
        assert_eq!(
            kinds("src/a.py", "modified", &["-    assert x == 1"]),
            [""; 0]
        );
        assert_eq!(
            kinds(test, "added", &["+assert True"]),
            ["warning checks_weakened"]
        );
        assert_eq!(kinds(test, "added", &["+assert true_name"]), [""; 0]);
        assert_eq!(
            kinds("src/a.rs", "modified", &["+    assert!(true);"]),
            ["warning checks_weakened"]
        );
    }

    #[test]
    fn tests_that_are_edited_or_deleted_are_told() {
        for (path, how, lines, expected) in [
            (
                "tests/a.py",
                "deleted",
                &["-assert x"][..],
                Some("serious tests_deleted"),
            ),
            (
                "a.txt",
                "tests/test_a.py",
                &[],
                Some("serious tests_deleted"),
            ),
            ("tests/b.py", "tests/a.py", &[], None),
            (
                "tests/a.py",
                "modified",
                &["-x = 1", "+x = 2"],
                Some("warning tests_changed"),
            ),
            (
                "tests/a.py",
                "modified",
                &["+x = 2"],
                Some("info tests_changed"),
            ),
            ("tests/a.py", "added", &["+x = 2"], None),
            ("src/a.py", "deleted", &["-x"], None),
            ("src/a.py", "modified", &["-x", "+y"], None),
        ] {
            let kinds = World::of(&[(path, how)]).kinds(lines);
            assert_eq!(
                kinds,
                expected.into_iter().collect::<Vec<_>>(),
                "{path} {how}"
            );
        }
    }

    #[test]
    fn checks_that_do_not_fail_any_more_are_told() {
        for (path, line, told) in [
            (
                ".github/workflows/ci.yml",
                "+      - run: make test || true",
                true,
            ),
            (
                ".github/workflows/ci.yml",
                "+        continue-on-error: true",
                true,
            ),
            ("Makefile", "+\tpytest || true", true),
            (
                "package.json",
                "+    \"test\": \"jest --passWithNoTests\"",
                true,
            ),
            (".github/workflows/ci.yml", "+      - run: make test", false),
            (
                ".github/workflows/ci.yml",
                "+      # make test || true",
                false,
            ),
            ("scripts/deploy.sh", "+rm x || true", false),
        ] {
            let found = kinds(path, "modified", &[line]);
            assert_eq!(
                found == ["warning checks_weakened"],
                told,
                "{line}: {found:?}"
            );
        }
    }
}
