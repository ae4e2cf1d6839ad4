//! What is hidden and what is not exported: neither crosses back, in whatever way it is tried.

use ringfence_engine::verify;
use ringfence_model::policy::Files;

use super::bench::{Bench, Ran, lines};

const TREE: &str = "
mkdir -p src docs secrets sub/inner; echo a > src/a.py; echo b > src/b.py; echo c > src/c.txt
echo d > docs/d.md; echo e > sub/inner/e.py; echo f > sub/inner/f.txt
echo canary-env > .env; echo canary-pem > sub/server.PEM; echo canary-dir > secrets/deep
";

fn export(patterns: &[&str]) -> Files {
    Files {
        export: Some(lines(patterns)),
        ..Files::default()
    }
}

fn hide(patterns: &[&str]) -> Files {
    Files {
        hide: lines(patterns),
        ..Files::default()
    }
}

/// The patch applies to the folder, and the bundle holds together.
fn applies(bench: &Bench, ran: &Ran) {
    bench.sh(&format!(
        "test ! -s '{0}' || git apply --check '{0}'",
        ran.result.patch.display()
    ));
    let report = verify::verify(&verify::Request {
        bundle: ran.result.bundle.clone(),
        keys: Vec::new(),
        base: Some(bench.folder()),
    })
    .unwrap();
    // Whole; nobody's key is trusted here.
    assert_eq!(report.verdict, verify::Verdict::Untrusted, "{report:?}");
    let unsure = report
        .checks
        .iter()
        .filter(|check| check.state != verify::State::Ok);
    let unsure: Vec<&str> = unsure.map(|check| check.check).collect();
    assert_eq!(unsure, ["signer"], "{report:?}");
}

#[test]
fn only_what_is_exported_crosses() {
    let bench = Bench::new(&format!(
        "git init -q; {TREE} git add .; git commit -qm first"
    ));
    for (patterns, script, changes, omitted) in [
        (
            &["**/*.py"][..],
            "echo x >> src/a.py; echo x >> src/c.txt; echo n > new.py; echo n > new.sh",
            &["A new.py", "M src/a.py"][..],
            &["new.sh notexported", "src/c.txt notexported"][..],
        ),
        // A directory that looks like a file lends its name to nothing.
        (
            &["**/*.py"],
            "mkdir evil.py && echo x > evil.py/run.sh && echo x > X.PY && ln -s /etc evil2.py",
            &["A evil2.py"],
            &["X.PY notexported", "evil.py/run.sh notexported"],
        ),
        // Deletions count as changes do.
        (
            &["*.py"],
            "rm -r sub/inner docs src/b.py",
            &["D src/b.py", "D sub/inner/e.py"],
            &["docs/d.md notexported", "sub/inner/f.txt notexported"],
        ),
        // A rename with one side that crosses is what that side is.
        (
            &["*.py"],
            "mv src/a.py src/a.txt",
            &["D src/a.py"],
            &["src/a.txt notexported"],
        ),
        (
            &["*.py"],
            "mv src/c.txt src/c.py",
            &["A src/c.py"],
            &["src/c.txt notexported"],
        ),
        (
            &["src/**"],
            "mv src/a.py src/z.py; mv src/b.py b.py",
            &["D src/b.py", "R src/a.py src/z.py"],
            &["b.py notexported"],
        ),
        // What stays in the folder is in the way of what would take its place.
        (
            &["docs/d.md/new", "src/**"],
            "rm docs/d.md && mkdir docs/d.md && echo x > docs/d.md/new",
            &[],
            &["docs/d.md notexported", "docs/d.md/new notexported"],
        ),
        (
            &[],
            "echo x >> src/a.py; rm docs/d.md",
            &[],
            &["docs/d.md notexported", "src/a.py notexported"],
        ),
        (&["**"], "echo x >> src/a.py", &["M src/a.py"], &[]),
        (
            &["docs"],
            "echo x > docs/new; echo x > docsx",
            &["A docs/new"],
            &["docsx notexported"],
        ),
    ] {
        let ran = bench.run(export(patterns), script);
        assert_eq!(ran.changes(), changes, "{patterns:?} {script}");
        assert_eq!(ran.omitted(), omitted, "{patterns:?} {script}");
        applies(&bench, &ran);
        for line in omitted {
            let path = line.split(' ').next().unwrap();
            let summary = ran.result.summary();
            assert!(summary.contains(path), "{summary}");
            assert!(
                summary.contains("the policy does not export it"),
                "{summary}"
            );
        }
    }
}

#[test]
fn what_is_hidden_is_absent_and_never_crosses() {
    let bench = Bench::new(TREE);
    bench.sh("ln .env docs/alias; ln .env alias; ln -s ../.env docs/soft; mkdir docs/more; ln secrets/deep docs/more/deep");
    let files = || hide(&[".env*", "**/*.pem", "secrets/**"]);
    // Nothing of it can be found.
    let ran = bench.run(
        files(),
        "grep -rl canary . ; cat docs/soft docs/alias alias; ls -A; ls docs docs/more sub; stat .ENV; echo fine",
    );
    let said = &ran.said;
    assert!(!said.contains("canary"), "{said}");
    let listed: Vec<&str> = said.lines().filter(|line| !line.contains(": ")).collect();
    assert!(
        !listed.contains(&".env") && !listed.contains(&"secrets"),
        "{said}"
    );
    assert!(
        !listed.contains(&"alias") && !listed.contains(&"server.PEM"),
        "{said}"
    );
    assert_eq!(ran.changes(), [""; 0]);
    assert_eq!(ran.omitted(), [""; 0]);
    // What is made anew under such a name, in any spelling, stays behind.
    let ran = bench.run(
        files(),
        "echo x > .env; echo x > .ENV.local; mkdir secrets; echo x > secrets/new; echo x > sub/a.Pem; mkdir -p sub/.envdir; echo y > sub/.envdir/z; echo x > alias; echo ok > kept",
    );
    assert_eq!(ran.changes(), ["A kept"]);
    let kept = [
        ".ENV.local hidden",
        ".env hidden",
        "alias hidden",
        "secrets hidden",
        "sub/.envdir hidden",
        "sub/a.Pem hidden",
    ];
    assert_eq!(ran.omitted(), kept);
    // To remove what holds something hidden does not show it in the patch.
    let ran = bench.run(files(), "rm -rf docs sub secrets");
    assert_eq!(
        ran.changes(),
        [
            "D docs/d.md",
            "D docs/soft",
            "D sub/inner/e.py",
            "D sub/inner/f.txt"
        ]
    );
    assert!(!ran.patch.contains("canary"), "{}", ran.patch);
    let result = std::fs::read_to_string(ran.result.bundle.join("result.json")).unwrap();
    assert!(!result.contains("canary"), "{result}");
    // A rename onto or from such a name is the side that crosses.
    let ran = bench.run(
        files(),
        "mv src/a.py .env.py; mv docs/d.md secrets-not; mkdir secrets; mv src/b.py secrets/",
    );
    assert_eq!(
        ran.changes(),
        ["R docs/d.md secrets-not", "D src/a.py", "D src/b.py"]
    );
}

#[test]
fn what_is_tracked_and_hidden_is_in_no_object_either() {
    let bench = Bench::new(&format!(
        "git init -q; {TREE} git add .; git commit -qm first"
    ));
    let ran = bench.run(
        hide(&[".env"]),
        "git show HEAD:.env; find /workspace /.ringfence /home /tmp -name '*.pack' -print -o -path '*objects/??/*' -print 2> /dev/null; ls -A",
    );
    assert!(!ran.said.contains("canary"), "{}", ran.said);
    assert!(!ran.said.contains("objects/"), "{}", ran.said);
    assert!(
        ran.result
            .notes
            .iter()
            .any(|note| note.contains("git does not work"))
    );
}

/// The other name of a hidden file is hidden with it, and its content is as much in the objects.
#[test]
fn what_is_tracked_by_another_name_is_in_no_object_either() {
    let bench = Bench::new(
        "git init -q; mkdir src; echo canary > k.pem; ln k.pem src/ok.txt; echo k.pem > .gitignore; git add .; git commit -qm first",
    );
    let ran = bench.run(
        hide(&["**/*.pem"]),
        "git show HEAD:src/ok.txt; git checkout src/ok.txt; cat src/ok.txt; ls -A",
    );
    assert!(!ran.said.contains("canary"), "{}", ran.said);
    let told = |note: &String| note.contains("`src/ok.txt` is hidden and tracked");
    assert!(ran.result.notes.iter().any(told), "{:?}", ran.result.notes);
}

#[test]
fn git_itself_can_be_hidden() {
    let bench = Bench::new(&format!(
        "git init -q; {TREE} git add .; git commit -qm first"
    ));
    for pattern in [".git", "/.git", ".git/**", ".g*"] {
        let ran = bench.run(
            hide(&[pattern]),
            "git log 2> /dev/null && echo WORKED; ls -A | grep git; find /.ringfence -path '*objects/??/*' 2> /dev/null; echo done",
        );
        assert_eq!(ran.said, "done\n", "{pattern}");
        let told = |note: &String| note.contains("hides `.git`");
        assert!(ran.result.notes.iter().any(told), "{:?}", ran.result.notes);
    }
}

#[test]
fn the_real_repository_is_never_seen() {
    let bench = Bench::new(&format!(
        "git init -q; {TREE} git add .; git commit -qm first"
    ));
    bench.sh("git config x.y canary-config; printf '#!/bin/sh\\n# canary-hook\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit");
    let ran = bench.run(
        Files::default(),
        "grep -rl 'canary-[ch]o' /workspace /.ringfence /home /tmp /etc /var /run 2> /dev/null; git config x.y; ls .git/hooks; echo x > .git/hooks/post-commit; mkdir -p .GIT/hooks; echo x > .GIT/hooks/h; echo x > .GIT/config; git config core.fsmonitor /tmp/x; echo fine",
    );
    assert!(!ran.said.contains("canary"), "{}", ran.said);
    assert!(ran.said.ends_with("fine\n"), "{}", ran.said);
    assert_eq!(ran.changes(), [""; 0]);
    assert_eq!(ran.omitted(), [".GIT notcarried"]);
}

#[test]
fn files_that_steer_agents_and_policies_widen_nothing_and_are_told() {
    let bench = Bench::new(TREE);
    let names = [
        "ringfence.toml",
        "Ringfence.TOML",
        ".claude/settings.json",
        ".Claude/settings.local.json",
        ".mcp.json",
        ".MCP.json",
        ".cursor/rules/x.mdc",
        "CLAUDE.md",
        "agents.md",
    ];
    let script: String = names
        .iter()
        .map(|name| format!("mkdir -p \"$(dirname {name})\"; echo 'allow = \"**\"' > {name};"))
        .collect();
    let ran = bench.run(Files::default(), &script);
    for name in names {
        let told = ran.result.flags.iter().any(|flag| {
            let text = serde_json::to_string(flag).unwrap();
            text.contains(name)
        });
        assert!(told, "{name}: {:?}", ran.result.flags);
    }
}
