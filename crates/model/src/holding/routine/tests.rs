//! Which paths, changes and contents are for a person, as tables.

use super::*;

fn side(mode: FileMode) -> Side {
    Side {
        mode,
        oid: "1".to_owned(),
        size: 1,
    }
}

fn change(path: &str, old: Option<FileMode>, new: Option<FileMode>) -> Change {
    Change {
        path: path.into(),
        kind: match (old, new) {
            (None, _) => ChangeKind::Added,
            (_, None) => ChangeKind::Deleted,
            _ => ChangeKind::Modified,
        },
        old: old.map(side),
        new: new.map(side),
        binary: false,
    }
}

fn renamed(from: &str, to: &str) -> Change {
    Change {
        kind: ChangeKind::Renamed { from: from.into() },
        ..change(to, FILE, FILE)
    }
}

const FILE: Option<FileMode> = Some(FileMode::Regular);
const PROGRAM: Option<FileMode> = Some(FileMode::Executable);
const LINK: Option<FileMode> = Some(FileMode::Symlink);

#[test]
fn plain_sources_and_documents_may_be_approved() {
    for path in [
        "README",
        "LICENSE",
        "README.md",
        "docs/guide.md",
        "docs/a b (c).rst",
        "docs/data.csv",
        "notes.txt",
        "src/main.rs",
        "src/Main.java",
        "a/b/c.py",
        "app/[id]/page.tsx",
        "lib/head/refs.c",
        "src/configure.rs",
        "src/console.py",
    ] {
        assert_eq!(why_not_path(path.as_bytes()), None, "{path}");
    }
}

#[test]
fn all_other_paths_are_for_a_person() {
    let cases: &[(&str, &[&str])] = &[
        (
            "dot",
            &[
                ".env",
                ".gitattributes",
                ".gitmodules",
                ".gitignore",
                ".github/x.md",
                ".GITHUB/x.md",
                ".git/config",
                "docs/.x/a.md",
                "src/.a.rs",
                "..a.md",
                ".mcp.json",
            ],
        ),
        (
            "not every machine",
            &[
                "docs/a.md.",
                "docs/a.md ",
                "docs /a.md",
                " a.md",
                "-rf.md",
                "a\\b.md",
                "a:b.md",
                "CON",
                "con.md",
                "docs/aux.txt/a.md",
                "lpt1.md",
                "r\u{435}adme.md",
                "\u{ff0e}github/a.md",
                "a\u{200c}.md",
                "\u{202e}a.md",
                "cafe\u{301}.md",
                "a\n.md",
                "$(x).md",
                "`x`.md",
                "a;b.md",
                "GIT~1.md",
                "a//b.md",
                "",
            ],
        ),
        ("steers later runs", &["sub/Ringfence.toml"]),
        (
            "recipe or a setting",
            &[
                "Makefile",
                "docs/Makefile",
                "MAKEFILE",
                "x.mk",
                "CMakeLists.txt",
                "Justfile",
                "build.rs",
                "setup.py",
                "docs/conf.py",
                "package.json",
                "Dockerfile",
                "x/pom.xml",
                "Makefile.PL",
                "vite.config.ts",
                "docs/docusaurus.config.js",
                "githooks/a.py",
                "gulpfile.ts",
                "x.gradle.kts",
                "Rakefile",
                "mise.toml",
            ],
        ),
        ("continuous integration", &["Jenkinsfile", "action.yml"]),
        (
            "coding agents",
            &["AGENTS.md", "docs/CLAUDE.md", "mcp.json"],
        ),
        (
            "lock file",
            &["Cargo.lock", "go.sum", "x.min.js", "a.ipynb", "a.svg"],
        ),
        (
            "how checks are done",
            &[
                "Cargo.toml",
                "pyproject.toml",
                "requirements-dev.txt",
                "go.mod",
                "tests/a.py",
                "src/a_test.go",
                "pytest/a.py",
                "x.so",
                "node_modules/x/a.js",
            ],
        ),
        (
            "no kind",
            &[
                "docs/HEAD",
                "docs/config",
                "docs/objects/00/x",
                "docs/refs/heads/main",
                "HEAD",
                "run",
                "bin/tool",
                "x.sh",
                "x.bat",
                "x.ps1",
                "a.json",
                "a.yml",
                "a.toml",
                "a.html",
                "a.exe",
                "a.mdx",
                "x.kts",
                "a.service",
                "a.desktop",
                "md",
            ],
        ),
    ];
    for (word, paths) in cases {
        for path in *paths {
            let why = why_not_path(path.as_bytes()).unwrap_or("nothing");
            assert!(why.contains(word), "{path:?}: {why}");
        }
    }
    assert!(why_not_path(b"a\xff.md").is_some());
}

#[test]
fn only_changes_of_plain_text_may_be_approved() {
    for (changes, why) in [
        (vec![change("a.md", None, FILE)], ""),
        (
            vec![change("a.md", FILE, FILE), change("b.rs", FILE, None)],
            "",
        ),
        (vec![renamed("a.md", "docs/a.md")], ""),
        (
            vec![
                change("a.md", None, FILE),
                change("a.md-x/b.md", FILE, None),
            ],
            "",
        ),
        (
            vec![change("a.py", None, PROGRAM)],
            "`a.py` is or was executable",
        ),
        (vec![change("a.py", FILE, PROGRAM)], "executable"),
        (vec![change("a.py", PROGRAM, FILE)], "executable"),
        (vec![change("a.py", PROGRAM, None)], "executable"),
        (
            vec![change("a.md", None, LINK)],
            "`a.md` is or was a symbolic link",
        ),
        (vec![change("a.md", LINK, None)], "symbolic link"),
        (
            vec![change("a.md", LINK, None), change("a.md", None, FILE)],
            "symbolic link",
        ),
        (
            vec![change("a.md", FILE, None), change("a.md", None, LINK)],
            "symbolic link",
        ),
        (
            vec![change("a.md", FILE, None), change("a.md", None, FILE)],
            "changes its type",
        ),
        (
            vec![change("a.md", FILE, None), change("a.md/b.md", None, FILE)],
            "`a.md/b.md` changes its type",
        ),
        (
            vec![change("a.md/b.md", FILE, None), change("a.md", None, FILE)],
            "changes its type",
        ),
        (
            vec![renamed(".envrc", "a.md")],
            "`a.md` was `.envrc`, which is a dot file",
        ),
        (
            vec![renamed("a.md", "docs/HEAD")],
            "`docs/HEAD` is of no kind",
        ),
        (
            vec![change("a.md", FILE, FILE), change(".env", FILE, None)],
            "`.env` is a dot file",
        ),
    ] {
        let found = why_not(&changes).unwrap_or_default();
        assert!(
            found.contains(why) && found.is_empty() == why.is_empty(),
            "{found} {changes:?}"
        );
    }
    let binary = Change {
        binary: true,
        ..change("a.md", None, FILE)
    };
    assert_eq!(why_not(&[binary]).unwrap(), "`a.md` is no text");
}

#[test]
fn programs_are_known_by_their_content() {
    for (content, program) in [
        (&b"#!/bin/sh\n"[..], true),
        (b"#!", true),
        (b"\x7fELF\x02", true),
        (b"a\0b", true),
        (b"# a title\n", false),
        (b" #!/bin/sh\n", false),
        (b"", false),
    ] {
        assert_eq!(is_program(content), program, "{content:?}");
    }
}
