//! Files of a patch that will run something on the machine of whoever takes it: by itself, or as
//! soon as they build, test, commit or let an agent work there.

use ringfence_model::ByteText;
use ringfence_model::changes::ChangeKind;
use ringfence_model::flag::{FlagKind, Severity};
use serde_json::Value;

use super::gather::{Sides, is_manifest};
use super::{Facts, Found, path_with, paths, settings};

/// How a path is known.
enum Is {
    /// The last component.
    Name(&'static [&'static str]),
    /// How the last component ends.
    Ends(&'static [&'static str]),
    /// A directory above it.
    In(&'static [&'static str]),
    /// The end of the whole path, by components.
    At(&'static [&'static str]),
}

/// What runs by itself, or before anybody has looked, is serious.
#[rustfmt::skip]
const TABLE: &[(Is, Severity, &str)] = &[
    (Is::In(&[".husky/", ".githooks/", "githooks/", ".git-hooks/", "lefthook/", ".lefthook/"]), Severity::Serious, "git hooks"),
    (Is::Name(&["lefthook.yml", "lefthook.yaml", ".lefthook.yml", ".huskyrc", ".huskyrc.json", ".lintstagedrc", ".lintstagedrc.json", ".overcommit.yml", ".pre-commit-hooks.yaml"]), Severity::Serious, "git hooks"),
    (Is::Name(&[".pre-commit-config.yaml", ".pre-commit-config.yml"]), Severity::Serious, "git hooks"),
    (Is::Name(&[".gitattributes"]), Severity::Serious, "filters and diff programs of git"),
    (Is::Name(&[".gitmodules"]), Severity::Serious, "where git fetches submodules from"),
    (Is::Name(&[".gitconfig", ".lfsconfig"]), Severity::Serious, "configuration of git"),
    (Is::At(&[".vscode/tasks.json", ".vscode/settings.json", ".vscode/launch.json", ".vscode/extensions.json", ".vscode/mcp.json"]), Severity::Serious, "tasks and settings of the editor"),
    (Is::Ends(&[".code-workspace", ".sublime-project"]), Severity::Serious, "tasks and settings of the editor"),
    (Is::In(&[".idea/", ".zed/", ".fleet/", ".vs/", ".nvim/"]), Severity::Serious, "tasks and settings of the editor"),
    (Is::Name(&[".exrc", ".nvimrc", ".vimrc", ".nvim.lua", ".dir-locals.el", ".lvimrc"]), Severity::Serious, "settings that an editor runs"),
    (Is::In(&[".devcontainer/"]), Severity::Serious, "a container that an editor starts"),
    (Is::Name(&[".devcontainer.json", ".gitpod.yml"]), Severity::Serious, "a container that an editor starts"),
    (Is::Name(&[".envrc", ".mise.toml", "mise.toml", ".tool-versions", ".autoenv", ".autoenv.zsh"]), Severity::Serious, "what a shell runs on entering the directory"),
    (Is::In(&[".claude/", ".codex/", ".cursor/", ".gemini/", ".aider/", ".continue/", ".windsurf/", ".roo/", ".clinerules/", ".kiro/", ".amazonq/", ".opencode/", ".github/instructions/", ".github/prompts/", ".github/agents/"]), Severity::Serious, "configuration of coding agents"),
    (Is::Name(&[".mcp.json", "mcp.json", ".aider.conf.yml", ".goosehints", "opencode.json"]), Severity::Serious, "configuration of coding agents"),
    (Is::Name(&["claude.md", "claude.local.md", "agents.md", "agents.override.md", "gemini.md", ".cursorrules", ".windsurfrules", ".clinerules", ".roorules", "copilot-instructions.md"]), Severity::Warning, "instructions for coding agents"),
    (Is::Name(&["makefile", "gnumakefile", "bsdmakefile", "justfile", ".justfile", "rakefile", "taskfile.yml", "taskfile.yaml", "jakefile", "gulpfile.js", "gruntfile.js", "meson.build", "cmakelists.txt", "sconstruct", "wscript", "build.sh", "configure", "configure.ac", "autogen.sh", "tox.ini", "noxfile.py", "dodo.py", "fabfile.py", "tasks.py", "magefile.go", "earthfile", "tiltfile"]), Severity::Warning, "what builds run"),
    (Is::Ends(&[".mk", ".cmake", ".gemspec"]), Severity::Warning, "what builds run"),
    (Is::Name(&["build.rs", "setup.py", "build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts", "gradlew", "gradlew.bat", "gradle-wrapper.properties", "gradle-wrapper.jar", "mvnw", "mvnw.cmd", "maven-wrapper.properties", "pom.xml", "build.xml", "build.sbt", "build.zig", "package.swift", "gemfile", "binding.gyp", "extconf.rb", "directory.build.props", "directory.build.targets"]), Severity::Warning, "what builds run"),
    (Is::In(&["buildsrc/"]), Severity::Warning, "what builds run"),
    (Is::Name(&["conftest.py", "sitecustomize.py", "usercustomize.py", "jest.config.js", "jest.config.ts", "jest.setup.js", "vitest.config.ts", "vitest.config.js", "playwright.config.ts", "karma.conf.js", "pytest.ini", ".mocharc.js", ".mocharc.json", ".rspec", "spec_helper.rb", "test_helper.rb", "phpunit.xml"]), Severity::Warning, "what test runners run"),
    (Is::Name(&["vite.config.js", "vite.config.ts", "webpack.config.js", "rollup.config.js", "babel.config.js", "next.config.js", "next.config.mjs", ".eslintrc.js", ".eslintrc.cjs", "eslint.config.js", "eslint.config.mjs", ".prettierrc.js", "postcss.config.js", "tailwind.config.js", "svelte.config.js", "astro.config.mjs", "metro.config.js"]), Severity::Warning, "what tools run as their configuration"),
    (Is::Ends(&[".pth"]), Severity::Warning, "what Python runs at each start"),
    (Is::Name(&["dockerfile", "containerfile", "docker-compose.yml", "docker-compose.yaml", "compose.yml", "compose.yaml", "vagrantfile", "procfile"]), Severity::Warning, "what containers run"),
    (Is::Ends(&[".dockerfile"]), Severity::Warning, "what containers run"),
    (Is::Name(&[".npmrc", ".yarnrc", ".yarnrc.yml", ".pnpmfile.cjs", "pnpm-workspace.yaml", "bunfig.toml", ".pypirc", "pip.conf", ".bundle/config", ".gemrc", "nuget.config", ".netrc"]), Severity::Warning, "where packages come from and what installing them runs"),
    (Is::In(&[".yarn/plugins/", ".yarn/releases/"]), Severity::Warning, "where packages come from and what installing them runs"),
    (Is::At(&[".cargo/config.toml", ".cargo/config", ".mvn/extensions.xml", ".mvn/jvm.config", ".mvn/maven.config", ".bundle/config"]), Severity::Warning, "which programs builds use"),
    (Is::Name(&["rust-toolchain", "rust-toolchain.toml", ".nvmrc", ".node-version", ".python-version", ".ruby-version", "global.json", "flake.nix", "shell.nix", "default.nix"]), Severity::Warning, "which programs builds use"),
];

pub(super) fn look(facts: &Facts<'_>, found: &mut Found) {
    for change in facts.changes {
        // What is removed runs nothing.
        if change.kind == ChangeKind::Deleted {
            continue;
        }
        let path = &change.path;
        if is_manifest(path.as_bytes()) {
            let sides = facts.gathered.sides.get(path);
            if sides.is_none_or(runs_other) {
                add(found, Severity::Warning, path, "scripts of a package");
            }
            continue;
        }
        if paths::is_ci(path.as_bytes()) {
            add(found, Severity::Warning, path, "continuous integration");
            continue;
        }
        let whole = String::from_utf8_lossy(path.as_bytes()).to_lowercase();
        let name = paths::name(path.as_bytes());
        let row = TABLE.iter().find(|(is, ..)| match is {
            Is::Name(names) => names.contains(&name.as_str()),
            Is::Ends(ends) => ends.iter().any(|end| name.ends_with(end)),
            Is::In(directories) => paths::within(&whole, directories),
            Is::At(ends) => ends.iter().any(|end| {
                whole
                    .strip_suffix(end)
                    .is_some_and(|before| before.is_empty() || before.ends_with('/'))
            }),
        });
        let sides = facts.gathered.sides.get(path);
        let harmless = sides.is_some_and(|sides| settings::is_harmless(path.as_bytes(), sides));
        if let Some((_, severity, what)) = row {
            let severity = if harmless { Severity::Info } else { *severity };
            add(found, severity, path, what);
        }
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
