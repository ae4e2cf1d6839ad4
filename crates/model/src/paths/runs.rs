//! Files that run something on the machine of whoever has them: by themselves, or as soon as somebody
//! builds, tests, commits or lets an agent work there.
//!
//! One table for all who ask: the flags of a patch, and the rules that approve one.

use super::{is_ci, name, within};
use crate::flag::Severity;

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
    (Is::Name(&["claude.md", "claude.local.md", "agents.md", "agents.override.md", "gemini.md", "qwen.md", "crush.md", "warp.md", "skill.md", ".cursorrules", ".windsurfrules", ".clinerules", ".roorules", "copilot-instructions.md"]), Severity::Warning, "instructions for coding agents"),
    (Is::Name(&["makefile", "gnumakefile", "bsdmakefile", "justfile", ".justfile", "rakefile", "taskfile.yml", "taskfile.yaml", "jakefile", "gulpfile.js", "gulpfile.mjs", "gulpfile.ts", "gruntfile.js", "gruntfile.ts", "makefile.pl", "build.pl", "build.jl", "setup.hs", "meson.build", "cmakelists.txt", "sconstruct", "wscript", "build.sh", "configure", "configure.ac", "autogen.sh", "tox.ini", "noxfile.py", "dodo.py", "fabfile.py", "tasks.py", "magefile.go", "earthfile", "tiltfile"]), Severity::Warning, "what builds run"),
    (Is::Ends(&[".mk", ".mak", ".cmake", ".gemspec", ".gradle", ".gradle.kts", ".bzl"]), Severity::Warning, "what builds run"),
    (Is::Name(&["build.rs", "setup.py", "build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts", "gradlew", "gradlew.bat", "gradle-wrapper.properties", "gradle-wrapper.jar", "mvnw", "mvnw.cmd", "maven-wrapper.properties", "pom.xml", "build.xml", "build.sbt", "build.zig", "package.swift", "gemfile", "binding.gyp", "extconf.rb", "directory.build.props", "directory.build.targets"]), Severity::Warning, "what builds run"),
    (Is::In(&["buildsrc/"]), Severity::Warning, "what builds run"),
    (Is::Name(&["conftest.py", "sitecustomize.py", "usercustomize.py", "jest.config.js", "jest.config.ts", "jest.setup.js", "vitest.config.ts", "vitest.config.js", "playwright.config.ts", "karma.conf.js", "pytest.ini", ".mocharc.js", ".mocharc.json", ".rspec", "spec_helper.rb", "test_helper.rb", "phpunit.xml"]), Severity::Warning, "what test runners run"),
    (Is::Name(&["vite.config.js", "vite.config.ts", "webpack.config.js", "rollup.config.js", "babel.config.js", "next.config.js", "next.config.mjs", ".eslintrc.js", ".eslintrc.cjs", "eslint.config.js", "eslint.config.mjs", ".prettierrc.js", "postcss.config.js", "tailwind.config.js", "svelte.config.js", "astro.config.mjs", "metro.config.js", "conf.py"]), Severity::Warning, "what tools run as their configuration"),
    (Is::Ends(&[".config.js", ".config.cjs", ".config.mjs", ".config.ts", ".config.cts", ".config.mts"]), Severity::Warning, "what tools run as their configuration"),
    (Is::Ends(&[".pth"]), Severity::Warning, "what Python runs at each start"),
    (Is::Name(&["dockerfile", "containerfile", "docker-compose.yml", "docker-compose.yaml", "compose.yml", "compose.yaml", "vagrantfile", "procfile"]), Severity::Warning, "what containers run"),
    (Is::Ends(&[".dockerfile"]), Severity::Warning, "what containers run"),
    (Is::Name(&[".npmrc", ".yarnrc", ".yarnrc.yml", ".pnpmfile.cjs", "pnpm-workspace.yaml", "bunfig.toml", ".pypirc", "pip.conf", ".bundle/config", ".gemrc", "nuget.config", ".netrc"]), Severity::Warning, "where packages come from and what installing them runs"),
    (Is::In(&[".yarn/plugins/", ".yarn/releases/"]), Severity::Warning, "where packages come from and what installing them runs"),
    (Is::At(&[".cargo/config.toml", ".cargo/config", ".mvn/extensions.xml", ".mvn/jvm.config", ".mvn/maven.config", ".bundle/config"]), Severity::Warning, "which programs builds use"),
    (Is::Name(&["rust-toolchain", "rust-toolchain.toml", ".nvmrc", ".node-version", ".python-version", ".ruby-version", "global.json", "flake.nix", "shell.nix", "default.nix"]), Severity::Warning, "which programs builds use"),
];

/// How grave it is that such a file changes, and what it is. `None`: it runs nothing by its name.
pub fn what_runs(path: &[u8]) -> Option<(Severity, &'static str)> {
    if is_manifest(path) {
        return Some((Severity::Warning, "scripts of a package"));
    }
    if is_ci(path) {
        return Some((Severity::Warning, "continuous integration"));
    }
    let whole = String::from_utf8_lossy(path).to_lowercase();
    let name = name(path);
    let row = TABLE.iter().find(|(is, ..)| match is {
        Is::Name(names) => names.contains(&name.as_str()),
        Is::Ends(ends) => ends.iter().any(|end| name.ends_with(end)),
        Is::In(directories) => within(&whole, directories),
        Is::At(ends) => ends.iter().any(|end| {
            whole
                .strip_suffix(end)
                .is_some_and(|before| before.is_empty() || before.ends_with('/'))
        }),
    });
    row.map(|(_, severity, what)| (*severity, *what))
}

/// True for a file whose parts matter one by one.
pub fn is_manifest(path: &[u8]) -> bool {
    ["package.json", "composer.json"].contains(&name(path).as_str())
}
