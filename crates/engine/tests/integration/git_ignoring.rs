//! The ignore rules against git's own word: `check-ignore` and `status --ignored`, on a table and
//! on random trees with random patterns.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use ringfence_engine::git::IgnoreRules;

use crate::shared::cases;
use crate::shared::git_bench as bench;
use bench::Bench;

/// All paths below a directory, `.git` left out; directories with a trailing slash.
fn walk(top: &Path) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut pending = vec![top.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name() == ".git" {
                continue;
            }
            let path = entry.path();
            let mut name = path
                .strip_prefix(top)
                .unwrap()
                .as_os_str()
                .as_bytes()
                .to_vec();
            if entry.file_type().unwrap().is_dir() {
                name.push(b'/');
                pending.push(path);
            }
            all.push(name);
        }
    }
    all.sort();
    all
}

fn git(bench: &Bench, at: &Path, args: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new("git")
        .args(args)
        .current_dir(at)
        .env("HOME", bench.path("home"))
        .env_remove("XDG_CONFIG_HOME")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    output.stdout
}

fn text(paths: &BTreeSet<Vec<u8>>) -> Vec<String> {
    paths
        .iter()
        .map(|path| String::from_utf8_lossy(path).into_owned())
        .collect()
}

/// Compares every path of `outside/<folder>`; rules may lie in `upper`, the rest in `base`.
fn compare(bench: &Bench, folder: &str, base: &Path) {
    let at = bench.path("outside").join(folder);
    let repo = bench.discover(folder).unwrap();
    let upper = File::open(bench.path("upper")).unwrap();
    let base = File::open(base).unwrap();
    let mut rules = IgnoreRules::load(Some(&repo), upper.as_fd(), base.as_fd()).unwrap();
    let everything = walk(&at);
    // `check-ignore` takes a path with a star for a pattern, and cannot be told otherwise.
    let all: Vec<&Vec<u8>> = everything
        .iter()
        .filter(|path| !path.contains(&b'*'))
        .collect();
    let mut input = Vec::new();
    for path in &all {
        input.extend_from_slice(path.strip_suffix(b"/").unwrap_or(path));
        input.push(0);
    }
    let answer = git(bench, &at, &["check-ignore", "-z", "--stdin"], &input);
    let by_git: BTreeSet<Vec<u8>> = answer
        .split(|&b| b == 0)
        .filter(|path| !path.is_empty())
        .map(<[u8]>::to_vec)
        .collect();
    let by_us: BTreeSet<Vec<u8>> = all
        .iter()
        .map(|path| {
            (
                path.strip_suffix(b"/").unwrap_or(path),
                path.ends_with(b"/"),
            )
        })
        .filter(|&(path, is_dir)| rules.is_ignored(path, is_dir))
        .map(|(path, _)| path.to_vec())
        .collect();
    assert_eq!(
        text(&by_us),
        text(&by_git),
        "check-ignore in {}",
        at.display()
    );

    let files: Vec<&Vec<u8>> = everything
        .iter()
        .filter(|path| !path.ends_with(b"/"))
        .collect();
    let prefix = if repo.prefix.is_empty() {
        Vec::new()
    } else {
        [&repo.prefix[..], b"/"].concat()
    };
    for (mark, ours) in [("!!", true), ("??", false)] {
        let args = ["status", "--porcelain=v1", "-z", "--ignored", "-uall", "."];
        let answer = git(bench, &at, &args, b"");
        let by_git: BTreeSet<Vec<u8>> = answer
            .split(|&b| b == 0)
            .filter_map(|line| line.strip_prefix(mark.as_bytes())?.strip_prefix(b" "))
            .filter(|path| !path.ends_with(b"/"))
            .map(|path| path.strip_prefix(&prefix[..]).unwrap().to_vec())
            .collect();
        let by_us: BTreeSet<Vec<u8>> = files
            .iter()
            .filter(|path| !rules.is_tracked(path) && rules.is_ignored(path, false) == ours)
            .map(|path| path.to_vec())
            .collect();
        assert_eq!(text(&by_us), text(&by_git), "status {mark}");
    }
}

const TREE: &str = "
mkdir -p src/gen build/keep docs/a/b node_modules/x 'sp ace' 'b{r,c}'
for f in a.o src/a.o src/gen/x src/gen/.keep build/out build/keep/k docs/a/b/c.html docs/x.html \
  node_modules/x/i.js 'sp ace/f ' 'b{r,c}/f' br '#hash' '!bang' '[x]' x 'a]' 'tab\t' Makefile é.txt \
  docs/a/z.log docs/z.log deep.log 'back\\\\slash' foo.min.js; do echo > \"$f\"; done
";

#[test]
fn a_table_of_rules() {
    for rules in [
        "*.o",
        "/a.o",
        "*.o\n!src/a.o\n!/src/a.o",
        "build/\n!build/keep/\n!build/keep/k",
        "build/*\n!build/keep/",
        "docs/**/*.html",
        "**/b/**",
        "/docs/**\n!/docs/a/\n!/docs/a/z.log",
        "**\n!*/\n!*.js",
        "node_modules",
        "sp\\ ace/\nf\\ ",
        "f  ",
        "b{r,c}",
        "b{r,c}/",
        "\\#hash\n\\!bang\n# comment\n#hash",
        "[[]x]\n[x]",
        "[!a-z]*",
        "[^a-z]*",
        "a[]]",
        "a[\\]]",
        "[[:upper:]]*",
        "[[:nonsense:]]",
        "[a",
        "*.[!o]*",
        "tab\t",
        "back\\\\slash",
        "é.txt\n?.txt\n??.txt",
        "\u{feff}*.log",
        "*.log\r\n!deep.log\r\n",
        "docs/*.log",
        "*/z.log",
        "/*\n!/src\n/src/*\n!/src/gen",
        "src/gen/**\n!src/gen/.keep",
        "***/x",
        "docs/***/c.html",
        "docs**html",
        "/",
        "//",
        "!",
        "*\\",
        "foo.*",
        "**/",
        "a**/",
        "src/",
        "./src",
    ] {
        let bench = Bench::new();
        bench.sh(&format!("git init -q r; cd r; {TREE}"));
        let top = bench.path("outside/r");
        fs::write(top.join(".gitignore"), rules).unwrap();
        bench.sh("cd r; git add -f src/gen/x Makefile node_modules/x/i.js");
        println!("{rules:?}");
        compare(&bench, "r", &top);
    }
}

#[test]
fn rules_of_every_origin() {
    let bench = Bench::new();
    bench.sh(&format!("git init -q r; cd r; {TREE} git add docs/x.html"));
    let top = bench.path("outside/r");
    fs::create_dir_all(bench.path("home/.config/git")).unwrap();
    fs::write(bench.path("home/.config/git/ignore"), "*.o\n*.log\n").unwrap();
    fs::write(top.join(".git/info/exclude"), "!a.o\n/src/gen/x\n").unwrap();
    fs::write(top.join(".gitignore"), "*.html\n/src/x\nsrc/gen/y\n").unwrap();
    fs::write(top.join("src/.gitignore"), "!a.o\n/gen/.keep\n").unwrap();
    fs::write(top.join("docs/.gitignore"), "!a/b/c.html\n!*.log\n").unwrap();
    fs::write(top.join("docs/a/.gitignore"), "z.log\n").unwrap();
    for folder in ["r", "r/docs", "r/docs/a", "r/src", "r/src/gen"] {
        compare(&bench, folder, &bench.path("outside").join(folder));
    }
    fs::write(
        bench.path("home/.gitconfig"),
        "[core]\nexcludesFile = ~/mine\n",
    )
    .unwrap();
    fs::write(bench.path("home/mine"), "*.js\n").unwrap();
    compare(&bench, "r", &top);
    bench.sh("cd r; git config core.ignoreCase true; echo '*.JS' >> .gitignore");
    compare(&bench, "r", &top);
}

#[test]
fn a_submodule_has_rules_of_its_own() {
    let bench = Bench::new();
    bench.sh(
        "git init -q inner; cd inner; echo '*.x' > .gitignore; echo f > t.x; git add -f .;
         git commit -qm i; cd ..; git init -q r; cd r; git submodule --quiet add ../inner lib;
         echo '*.y' > .gitignore; echo '*.z' > .git/modules/lib/info/exclude; git add .; git commit -qm r;
         for n in a.x a.y a.z; do echo > $n; echo > lib/$n; done",
    );
    let repo = bench.discover("r").unwrap();
    let upper = File::open(bench.path("upper")).unwrap();
    let base = File::open(bench.path("outside/r")).unwrap();
    let mut rules = IgnoreRules::load(Some(&repo), upper.as_fd(), base.as_fd()).unwrap();
    for (path, ignored, tracked) in [
        ("a.x", false, false),
        ("a.y", true, false),
        ("a.z", false, false),
        ("lib", false, true),
        ("lib/t.x", false, true),
        ("lib/a.x", true, false),
        ("lib/a.y", false, false),
        ("lib/a.z", true, false),
    ] {
        assert_eq!(
            rules.is_ignored(path.as_bytes(), path == "lib"),
            ignored,
            "{path}"
        );
        assert_eq!(rules.is_tracked(path.as_bytes()), tracked, "{path}");
    }
    assert!(rules.has_tracked_below(b"lib") && !rules.has_tracked_below(b"nowhere"));
}

#[test]
fn without_a_repository_nothing_is_ignored() {
    let bench = Bench::new();
    fs::write(bench.path("outside/.gitignore"), "*").unwrap();
    let upper = File::open(bench.path("upper")).unwrap();
    let base = File::open(bench.path("outside")).unwrap();
    let mut rules = IgnoreRules::load(None, upper.as_fd(), base.as_fd()).unwrap();
    assert!(!rules.is_ignored(b"a", false) && !rules.is_tracked(b"a"));
    assert!(!rules.has_tracked_below(b""));
}

#[test]
fn a_flood_of_rules_is_bounded() {
    let bench = Bench::new();
    bench.sh("git init -q r");
    let upper = bench.path("upper");
    let line = "*a?b*[c-e]*f*g*h**/x?y*z\n";
    for dir in 0..40 {
        let dir = upper.join(format!("d{dir}"));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(".gitignore"), line.repeat(40_000)).unwrap();
    }
    fs::write(upper.join(".gitignore"), "*\n".repeat(600_000)).unwrap();
    let repo = bench.discover("r").unwrap();
    let (upper, base) = (
        File::open(upper).unwrap(),
        File::open(bench.path("outside/r")).unwrap(),
    );
    let mut rules = IgnoreRules::load(Some(&repo), upper.as_fd(), base.as_fd()).unwrap();
    let started = std::time::Instant::now();
    for dir in 0..40 {
        assert!(!rules.is_ignored(format!("d{dir}/file").as_bytes(), false));
    }
    println!("a flood of rules: {:?}", started.elapsed());
    assert!(started.elapsed() < std::time::Duration::from_secs(60));
}

fn pattern() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "a",
        "b",
        "ab",
        "c",
        "*",
        "**",
        "***",
        "?",
        "[ab]",
        "[!a]",
        "[^b]",
        "[a-c]",
        "[[:alpha:]]",
        "[]a]",
        "[!]]",
        "[a",
        "{a,b}",
        "\\*",
        "\\a",
        "\\ ",
        "\\/",
        " ",
        "!",
        "#",
        "-",
        "é",
        "\u{a0}",
        "\u{3000}",
        "[!é]",
        "]",
        "/",
        "/",
        "/",
        "/**/",
        "/*",
    ]);
    let body = prop::collection::vec(piece, 1..5).prop_map(|pieces| pieces.concat());
    let start = prop::sample::select(vec!["", "", "", "!", "/", "!/", "**/"]);
    let end = prop::sample::select(vec!["", "", "", "/", " ", "/**", "\r"]);
    (start, body, end).prop_map(|(start, body, end)| format!("{start}{body}{end}"))
}

const NAMES: [&str; 16] = [
    "a", "b", "c", "ab", "ac", "a b", "{a,b}", "é", "*", "]", "!a", "#", "-", "a ", "a\u{a0}",
    "\u{3000}",
];

/// Every name alone, below every other one, and with something below it.
fn names_below_names() -> Vec<String> {
    let mut names: Vec<String> = NAMES.iter().map(|name| name.to_string()).collect();
    for outer in NAMES {
        for inner in NAMES {
            names.push(format!("{outer}/{inner}"));
            names.extend(["a", "b"].map(|name| format!("{outer}/{inner}/{name}")));
        }
    }
    names
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases::cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_rules_on_random_trees(
        paths in prop::collection::vec(prop::collection::vec(0usize..NAMES.len(), 1..4), 1..30),
        tracked in prop::collection::vec(any::<bool>(), 30),
        files in prop::collection::vec(
            (prop::collection::vec(pattern(), 1..6), any::<prop::sample::Index>(), any::<bool>()),
            1..4,
        ),
    ) {
        let bench = Bench::new();
        let top = bench.path("outside/r");
        let base = bench.path("work");
        bench.sh("git init -q r");
        for (at, path) in paths.iter().enumerate() {
            let path: Vec<&str> = path.iter().map(|&name| NAMES[name]).collect();
            let path = top.join(path.join("/"));
            if fs::create_dir_all(path.parent().unwrap()).is_ok() && !path.exists() {
                fs::write(&path, "").unwrap();
                if tracked[at] && at % 3 == 0 {
                    let name = path.strip_prefix(&top).unwrap().to_str().unwrap();
                    git(&bench, &top, &["--literal-pathspecs", "add", "-f", "--", name], b"");
                }
            }
        }
        let mut dirs: Vec<Vec<u8>> =
            walk(&top).into_iter().filter(|path| path.ends_with(b"/")).collect();
        dirs.push(Vec::new());
        for (patterns, dir, in_upper) in &files {
            let dir = Path::new(std::ffi::OsStr::from_bytes(&dirs[dir.index(dirs.len())]));
            let text = patterns.join("\n");
            fs::write(top.join(dir).join(".gitignore"), &text).unwrap();
            let layer = if *in_upper { bench.path("upper") } else { base.clone() };
            fs::create_dir_all(bench.path("upper").join(dir)).unwrap();
            fs::create_dir_all(base.join(dir)).unwrap();
            // The last writer of a directory's rules wins, in whichever layer.
            let _ = fs::remove_file(bench.path("upper").join(dir).join(".gitignore"));
            fs::write(base.join(dir).join(".gitignore"), "*\n").unwrap();
            fs::write(layer.join(dir).join(".gitignore"), &text).unwrap();
        }
        compare(&bench, "r", &base);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases::cases() / 8, max_shrink_iters: 0, failure_persistence: None, ..ProptestConfig::default() })]

    /// Each pattern in a directory of its own, all asked of git at once.
    #[test]
    fn random_rules_by_themselves(patterns in prop::collection::vec(pattern(), 150)) {
        let bench = Bench::new();
        let top = bench.path("outside/r");
        bench.sh("git init -q r");
        // A path with a star is a pattern to `check-ignore`.
        let names: Vec<String> =
            names_below_names().into_iter().filter(|name| !name.contains('*')).collect();
        let mut input = Vec::new();
        for (at, pattern) in patterns.iter().enumerate() {
            let dir = top.join(at.to_string());
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(".gitignore"), pattern).unwrap();
            for name in &names {
                input.extend_from_slice(format!("{at}/{name}\0").as_bytes());
            }
        }
        let answer = git(&bench, &top, &["check-ignore", "-z", "--stdin"], &input);
        let by_git: BTreeSet<&[u8]> = answer.split(|&b| b == 0).collect();
        let repo = bench.discover("r").unwrap();
        let upper = File::open(bench.path("upper")).unwrap();
        let base = File::open(&top).unwrap();
        let mut rules = IgnoreRules::load(Some(&repo), upper.as_fd(), base.as_fd()).unwrap();
        for (at, pattern) in patterns.iter().enumerate() {
            for name in &names {
                let path = format!("{at}/{name}");
                // Nothing is there: to git, no name is a directory's.
                let ours = rules.is_ignored(path.as_bytes(), false);
                prop_assert_eq!(ours, by_git.contains(path.as_bytes()), "{:?} on {:?}", pattern, name);
            }
        }
    }
}
