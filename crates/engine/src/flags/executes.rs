//! Files of a patch that will run something on the machine of whoever takes it: by itself, or as
//! soon as they build, test, commit or let an agent work there.

use ringfence_model::ByteText;
use ringfence_model::changes::ChangeKind;
use ringfence_model::flag::{FlagKind, Severity};
use ringfence_model::paths::runs;
use serde_json::Value;

use super::gather::Sides;
use super::{Facts, Found, path_with, settings};

pub(super) fn look(facts: &Facts<'_>, found: &mut Found) {
    for change in facts.changes {
        // What is removed runs nothing.
        if change.kind == ChangeKind::Deleted {
            continue;
        }
        let path = &change.path;
        let Some((severity, what)) = runs::what_runs(path.as_bytes()) else {
            continue;
        };
        let sides = facts.gathered.sides.get(path);
        if runs::is_manifest(path.as_bytes()) {
            if sides.is_none_or(runs_other) {
                add(found, severity, path, what);
            }
            continue;
        }
        let harmless = sides.is_some_and(|sides| settings::is_harmless(path.as_bytes(), sides));
        let severity = if harmless { Severity::Info } else { severity };
        add(found, severity, path, what);
    }
}

fn add(found: &mut Found, severity: Severity, path: &ByteText, what: &str) {
    let message = match severity {
        Severity::Serious => "a file that may run something on your machine without being asked",
        Severity::Warning => {
            "a file that runs on your machine, or a server of yours, when you build, test or install"
        }
        Severity::Info => {
            "settings that could run something on your machine, and name nothing to run"
        }
    };
    found.add(
        FlagKind::RunsOnReview,
        severity,
        message,
        path_with(path, what),
    );
}

/// Whether a manifest names other programs to run than before. One that cannot be read may.
fn runs_other(sides: &Sides) -> bool {
    const RUN: &[&str] = &[
        "scripts",
        "husky",
        "lint-staged",
        "simple-git-hooks",
        "pre-commit",
        "gitHooks",
        "packageManager",
        "gypfile",
    ];
    let parse = |side: &Option<Vec<u8>>| -> Option<Value> {
        match side {
            None => Some(Value::Null),
            Some(text) => serde_json::from_slice(text).ok(),
        }
    };
    match (parse(&sides.old), parse(&sides.new)) {
        (Some(old), Some(new)) => RUN.iter().any(|key| old.get(key) != new.get(key)),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::World;
    use super::*;

    #[test]
    fn files_that_run_are_known() {
        for (path, severity) in [
            (".husky/pre-commit", "serious"),
            ("sub/.husky/pre-push", "serious"),
            (".gitattributes", "serious"),
            (".gitmodules", "serious"),
            (".pre-commit-config.yaml", "serious"),
            (".vscode/tasks.json", "serious"),
            (".VSCode/Settings.json", "serious"),
            (".idea/workspace.xml", "serious"),
            (".devcontainer/devcontainer.json", "serious"),
            (".envrc", "serious"),
            (".claude/settings.json", "serious"),
            (".codex/config.toml", "serious"),
            (".cursor/mcp.json", "serious"),
            (".mcp.json", "serious"),
            ("a.code-workspace", "serious"),
            ("AGENTS.md", "warning"),
            ("CLAUDE.md", "warning"),
            (".github/workflows/ci.yml", "warning"),
            (".gitlab-ci.yml", "warning"),
            ("Makefile", "warning"),
            ("justfile", "warning"),
            ("Rakefile", "warning"),
            ("crates/a/build.rs", "warning"),
            ("setup.py", "warning"),
            ("tests/conftest.py", "warning"),
            ("Dockerfile", "warning"),
            (".npmrc", "warning"),
            (".yarnrc.yml", "warning"),
            (".cargo/config.toml", "warning"),
            ("rust-toolchain.toml", "warning"),
            ("docs/conf.py", "warning"),
            ("docs/docusaurus.config.ts", "warning"),
            ("Makefile.PL", "warning"),
            ("app/build.gradle.kts", "warning"),
            ("lib/SKILL.md", "warning"),
        ] {
            for how in ["added", "modified"] {
                let kinds = World::of(&[(path, how)]).kinds(&[]);
                let expected = format!("{severity} runs_on_review");
                assert!(kinds.contains(&expected), "{path} {how}: {kinds:?}");
            }
            let kinds = World::of(&[(path, "deleted")]).kinds(&[]);
            assert!(
                !kinds.iter().any(|kind| kind.contains("runs_on_review")),
                "{path}"
            );
        }
    }

    #[test]
    fn others_are_not() {
        for path in [
            "src/main.rs",
            "docs/makefile.md",
            "src/husky/dog.py",
            ".github/CODEOWNERS",
            ".gitignore",
            ".vscode/README.md",
            "config.toml",
            "src/config.ts",
            "docs/configure.py",
            "src/build.rs.txt",
            "my.claude/x",
            "src/setup.python",
        ] {
            assert_eq!(
                World::of(&[(path, "modified")]).kinds(&[]),
                [""; 0],
                "{path}"
            );
        }
    }

    #[test]
    fn of_a_manifest_only_what_runs_matters() {
        let old = r#"{"name": "x", "scripts": {"test": "jest"}, "dependencies": {"a": "1"}}"#;
        for (before, after, told) in [
            (Some(old), old.replace("\"1\"", "\"2\""), false),
            (Some(old), old.replace("jest", "true"), true),
            (Some(old), old.replace("\"test\"", "\"postinstall\""), true),
            (Some(old), "{".to_owned(), true),
            (None, r#"{"name": "x"}"#.to_owned(), false),
            (None, old.to_owned(), true),
        ] {
            let mut world = World::of(&[("web/package.json", "modified")]);
            let sides = Sides {
                old: before.map(|text| text.as_bytes().to_vec()),
                new: Some(after.clone().into_bytes()),
            };
            world
                .gathered
                .sides
                .insert("web/package.json".into(), sides);
            assert_eq!(!world.kinds(&[]).is_empty(), told, "{after}");
        }
    }
}
