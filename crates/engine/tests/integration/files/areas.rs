//! Areas: what may be written and what may not, against all that changes a file.

use ringfence_model::policy::Files;

use super::bench::{Bench, lines};

const TREE: &str = "
mkdir -p src/vendor/x docs; echo a > src/a.c; echo v > src/vendor/v.c; echo x > src/vendor/x/x.c
echo d > docs/d.md; echo r > README; echo k > key; ln -s ../docs src/out; ln -s /etc src/etc
chmod 644 README docs/d.md; chmod 755 docs .
";

fn write(areas: &[&str]) -> Files {
    Files {
        write: Some(lines(areas)),
        ..Files::default()
    }
}

/// One change for each way there is to make one, all outside of `src`.
const ATTACKS: &str = "
    echo x >> README
    : > docs/d.md
    truncate -s 0 README
    rm README
    rm -rf docs
    move README src/README
    move src/a.c a.c
    move docs docs2
    move src other
    mkdir new
    mkdir docs/new
    touch README
    touch -d @1 docs
    chmod 600 README
    chmod 700 docs
    chmod 711 .
    ln README src/alias
    ln src/a.c docs/alias
    ln -s x docs/link
    mknod docs/pipe p
    echo x >> src/out/d.md
    echo x > src/out/new
    chmod 600 src/out/d.md
    echo x >> src/../README
    echo x >> /proc/self/cwd/README
    exec 8< README; echo x >> /proc/self/fd/8
    exec 9< docs; echo x > /proc/self/fd/9/new
    exec 7< README; chmod 600 /proc/self/fd/7
    cd src && touch ../README
    cd src && move ../docs here
    python3 -c 'import os; os.setxattr(\"README\", \"user.x\", b\"y\")'
    python3 -c 'import os; os.open(\"docs\", os.O_TMPFILE | os.O_WRONLY)'
    python3 -c 'import os; os.truncate(\"README\", 0)'
    python3 -c 'import os; os.utime(\"README\", (1, 1))'
    python3 -c 'import os; os.chmod(\"docs/d.md\", 0o600)'
    python3 -c 'import os; os.rename(\"src/a.c\", \"docs/d.md\")'
    python3 -c 'import os; os.link(\"README\", \"src/l\")'
    python3 -c 'import ctypes; exit(ctypes.CDLL(None).renameat2(-100, b\"src/a.c\", -100, b\"README\", 2) != 0)'
    python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"docs/s\")'
    python3 -c 'import os; f = os.open(\"README\", os.O_RDONLY); os.fchmod(f, 0o600)'
    python3 -c 'import os; f = os.open(\"docs\", os.O_RDONLY); os.mkdir(\"x\", dir_fd=f)'
    python3 -c 'import os, mmap; f = os.open(\"README\", os.O_RDWR); mmap.mmap(f, 1)'
";

fn attacks() -> Vec<&'static str> {
    let lines = ATTACKS.lines().map(str::trim);
    lines.filter(|line| !line.is_empty()).collect()
}

/// Tries each attack after `before`, and says the numbers of those that worked.
fn trying(attacks: &[&str], before: &str) -> String {
    // The call alone: `mv` would copy where it cannot move.
    let renames = r#"move() { perl -e 'exit !rename $ARGV[0], $ARGV[1]' "$@"; }"#;
    let attack = |(number, line): (usize, &&str)| {
        format!("( {before} {line} ) > /dev/null 2>&1 && echo -n '{number} '\n")
    };
    let attacks: String = attacks.iter().enumerate().map(attack).collect();
    format!("{renames}\n{attacks}")
}

#[test]
fn outside_of_writable_areas_nothing_changes() {
    let bench = Bench::new(TREE);
    let attacks = attacks();
    let work = "echo y > src/new && echo z >> src/a.c && mkdir src/d && mv src/new src/d/ \
        && chmod +x src/a.c && touch -d @9 src/d && rm -r src/vendor \
        && echo tmp > /tmp/t && echo home > ~/h && echo fine";
    let script = format!("{}{work}", trying(&attacks, ""));
    let ran = bench.run(write(&["src/**"]), &script);
    assert_eq!(ran.said, "fine\n");
    let changed = [
        "M src/a.c",
        "A src/d/new",
        "D src/vendor/v.c",
        "D src/vendor/x/x.c",
    ];
    assert_eq!(ran.changes(), changed);
    assert_eq!(ran.omitted(), [""; 0]);
    // Without the policy all of them work, on a copy for each.
    let copy = "rm -rf /tmp/w; cp -a . /tmp/w; cd /tmp/w;";
    let ran = bench.run(Files::default(), &trying(&attacks, copy));
    let worked: Vec<String> = ran.said.split_whitespace().map(str::to_owned).collect();
    let all: Vec<String> = (0..attacks.len())
        .map(|number| number.to_string())
        .collect();
    assert_eq!(worked, all);
}

#[test]
fn nothing_at_all_may_be_written() {
    let bench = Bench::new(TREE);
    let mut attacks = attacks();
    attacks.extend(["echo x > src/n", "echo x > n", "chmod 600 src/a.c"]);
    let script = format!("{} echo home > ~/h && echo fine", trying(&attacks, ""));
    let ran = bench.run(write(&[]), &script);
    assert_eq!(ran.said, "fine\n");
    assert_eq!(ran.changes(), [""; 0]);
}

#[test]
fn the_most_specific_area_decides() {
    let bench = Bench::new(TREE);
    let files = Files {
        write: Some(lines(&["src/**", "src/vendor/x/**"])),
        read_only: lines(&["src/vendor/**", "src/a.c"]),
        ..Files::default()
    };
    let attacks = [
        "echo x >> src/vendor/v.c",
        "chmod 600 src/vendor/v.c",
        "touch src/vendor",
        "touch src/vendor/new",
        "rm -rf src/vendor",
        "move src/vendor src/v2",
        "move src/vendor/x src/x",
        "move src/vendor/x/x.c src/x.c",
        "move src/vendor/v.c src/vendor/x/v.c",
        "ln src/vendor/v.c src/v",
        "echo x > src/a.c",
        "rm src/a.c",
        "move src/a.c src/b.c",
        "chmod 600 src/a.c",
        "echo x > src/n && move src/n src/a.c",
        "ln -f src/out src/a.c",
        "move src s2",
        "ln -s vendor src/link && echo x > src/link/v.c",
    ];
    let script = format!(
        "{} rm -f src/n src/link; echo inner > src/vendor/x/new && echo new > src/new && echo fine",
        trying(&attacks, "")
    );
    let ran = bench.run(files, &script);
    assert_eq!(ran.said, "fine\n");
    let changed = ["A src/new", "A src/vendor/x/new", "D src/vendor/x/x.c"];
    assert_eq!(ran.changes(), changed);
}

#[test]
fn read_only_parts_stay_where_they_are() {
    let bench = Bench::new(TREE);
    let files = || Files {
        read_only: lines(&["src/vendor/**", "key"]),
        ..Files::default()
    };
    let attacks = [
        "move src src2",
        "rm -rf src",
        "move src/vendor src/v2",
        "rmdir src/vendor/x",
        "echo x >> src/vendor/x/x.c",
        "rm key",
        "move key k2",
        "echo x > k && move k key",
        "ln -sf README key",
        "touch key",
        "python3 -c 'import ctypes; exit(ctypes.CDLL(None).renameat2(-100, b\"src\", -100, b\"docs\", 2) != 0)'",
        "mkdir t && cp -a src/a.c t/ && python3 -c 'import ctypes; exit(ctypes.CDLL(None).renameat2(-100, b\"src\", -100, b\"t\", 2) != 0)'",
    ];
    let script = format!(
        "{} rm -rf t k; echo x > README; echo fine",
        trying(&attacks, "")
    );
    let ran = bench.run(files(), &script);
    assert_eq!(ran.said, "fine\n");
    let mut changed = ran.changes();
    // Of `src`, what was not held could be removed.
    changed.retain(|line| !line.starts_with("D src/") || line.contains("vendor"));
    assert_eq!(changed, ["M README"]);
}

#[test]
fn what_is_denied_and_missing_cannot_be_made() {
    let bench = Bench::new(TREE);
    let files = Files {
        read_only: lines(&[".mcp.json", "gen/**", "conf/deep/secret.toml", ".claude/**"]),
        ..Files::default()
    };
    let attacks = [
        "echo x > .mcp.json",
        "rm .mcp.json",
        "rm -f .mcp.json",
        "echo x > gen/a",
        "rmdir gen",
        "rm -rf gen",
        "move gen g2",
        "ln -s docs gen",
        "mkdir gen",
        "echo x > conf/deep/secret.toml",
        "rm -rf conf",
        "move conf c2",
        "move conf/deep conf/d2",
        "mkdir .claude/hooks",
        "echo x > .claude/settings.json",
    ];
    let script = format!(
        "{} echo x > conf/other && mkdir .CLAUDE && echo x > .CLAUDE/settings.json \
         && echo x > .Mcp.json && echo fine",
        trying(&attacks, "")
    );
    let ran = bench.run(files, &script);
    assert_eq!(ran.said, "fine\n");
    assert_eq!(ran.changes(), ["A conf/other"]);
    // Another spelling is the same file elsewhere.
    let kept = [".CLAUDE/settings.json readonly", ".Mcp.json readonly"];
    assert_eq!(ran.omitted(), kept);
}

#[test]
fn another_spelling_that_is_there_is_held_as_well() {
    let bench = Bench::new("mkdir -p SRC/Vendor Straße; echo v > SRC/Vendor/v; echo s > Straße/s");
    let files = Files {
        read_only: lines(&["src/vendor/**", "STRASSE/**", "straße/**"]),
        ..Files::default()
    };
    let attacks = [
        "echo x > SRC/Vendor/v",
        "touch SRC/Vendor/n",
        "rm -rf SRC",
        "echo x > Straße/s",
    ];
    let ran = bench.run(files, &format!("{} echo fine", trying(&attacks, "")));
    assert_eq!(ran.said, "fine\n");
    assert_eq!(ran.changes(), [""; 0]);
}

#[test]
fn a_directory_that_is_missing_is_made_inside_only() {
    let bench = Bench::new(TREE);
    let ran = bench.run(
        write(&["build/out/**", "notes/"]),
        "echo x > build/out/a && echo y > notes/b && ! touch build/x 2> /dev/null && ! mkdir n2 2> /dev/null && echo fine",
    );
    assert_eq!(ran.said, "fine\n");
    assert_eq!(ran.changes(), ["A build/out/a", "A notes/b"]);
    assert_eq!(ran.omitted(), [""; 0]);
}

#[test]
fn a_file_is_written_in_place_and_not_replaced() {
    let bench = Bench::new(TREE);
    let attacks = [
        "rm README",
        "move README r2",
        "echo x > /tmp/r && move /tmp/r README",
        "sed -i s/r/q/ README",
    ];
    let ran = bench.run(
        write(&["README"]),
        &format!(
            "{} echo more >> README && chmod +x README && echo fine",
            trying(&attacks, "")
        ),
    );
    assert!(ran.said.ends_with("fine\n"), "{}", ran.said);
    assert_eq!(ran.changes(), ["M README"]);
    let plain = bench.run(Files::default(), "true");
    assert_eq!(
        ran.result.wall, plain.result.wall,
        "the second wall stands as ever"
    );
}

#[test]
fn git_works_beside_areas() {
    let bench = Bench::new(&format!(
        "git init -q; {TREE} git add .; git commit -qm first"
    ));
    let ran = bench.run(
        write(&["src/**"]),
        "echo b >> src/a.c && git add src && git commit -qm second && git status --porcelain && git log --oneline | wc -l && git stash list",
    );
    assert_eq!(ran.said, "2\n");
    assert_eq!(ran.changes(), ["M src/a.c"]);
    // Who says so gets a history that does not change.
    let files = Files {
        read_only: lines(&[".git/**"]),
        ..write(&["src/**"])
    };
    let ran = bench.run(
        files,
        "echo b >> src/a.c; git add src 2> /dev/null || echo refused",
    );
    assert_eq!(ran.said, "refused\n");
}

#[test]
fn what_the_kernel_cannot_hold_is_refused_with_a_way_out() {
    let bench = Bench::new(&format!("{TREE} ln -s docs dlink"));
    let hidden = Files {
        hide: lines(&["docs"]),
        ..write(&["docs/**"])
    };
    let denied = |text: &str| Files {
        read_only: lines(&[text]),
        ..Files::default()
    };
    let many: Vec<String> = (0..200).map(|number| format!("a{number}/**")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (files, expected) in [
        (write(&["**/*.py"]), "`export`"),
        (write(&["src/*"]), "`export`"),
        (denied("*.lock"), "`export`"),
        (write(&["../other/**"]), "without `..`"),
        (write(&["/etc/**"]), "from its top"),
        (write(&["missing.txt"]), "write `dir/**`"),
        (write(&["src/out/**"]), "`src/out` is a link"),
        (write(&["dlink/x/**"]), "`dlink` is a link"),
        (write(&["README/x/**"]), "`README` is not a directory"),
        (denied("dlink/x"), "`dlink` is a link"),
        (denied("README/x"), "`README` is not a directory"),
        (hidden, "written and hidden"),
        (write(&many), "128 areas"),
        (
            Files {
                export: Some(lines(&["a["])),
                ..Files::default()
            },
            "`a[` is not a pattern",
        ),
    ] {
        let said = bench.refusal(files);
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

#[test]
fn what_is_held_is_proven_and_told() {
    let bench = Bench::new(TREE);
    let files = Files {
        read_only: lines(&["src/vendor/**"]),
        ..write(&["src/**"])
    };
    let ran = bench.run(files, "true");
    let journal = std::fs::read_to_string(ran.result.bundle.join("audit.jsonl")).unwrap();
    for word in [
        r#""files":{"writable":["src"],"read_only":[".","src/vendor"]}"#,
        r#"{"probe":"write_/workspace","held":true,"detail":"Read-only file system (os error 30)"}"#,
        r#"{"probe":"change_mode_/workspace","held":true,"#,
        r#"{"probe":"change_times_/workspace/src/vendor","held":true,"#,
    ] {
        assert!(journal.contains(word), "{word}: {journal}");
    }
    let manifest = std::fs::read_to_string(ran.result.bundle.join("manifest.json")).unwrap();
    assert!(manifest.contains("src/vendor"), "{manifest}");
    let plain = bench.run(Files::default(), "true");
    let journal = std::fs::read_to_string(plain.result.bundle.join("audit.jsonl")).unwrap();
    assert!(!journal.contains("\"files\""), "{journal}");
}
