//! Git directories that lie somewhere in a folder are not seen inside, however deep.

#![allow(clippy::unwrap_used)]

use ringfence_engine::git;

use crate::shared::git_bench as bench;
use bench::Bench;

/// Repositories of every kind, each with a secret in its settings.
const NESTED: &str = "
    make() { git init -q ${2-} $1; test -d $1/.git && g=$1/.git || g=$1; echo '[http] x = SECRET' >> $g/config; }
    mkdir -p a/b/c/d; make a/b/c/d; make a/b; make one
    make x/bare.git --bare; make x/y/z/store --bare
    mkdir l; git init -q --separate-git-dir=l/kept l/sep; echo '# SECRET' >> l/kept/config
    mkdir -p up/.GIT m; echo SECRET > up/.GIT/config; echo 'gitdir: /nowhere/SECRET' > m/.git
    ln -s ../a/b/.git x/.git
    echo n > a/b/c/d/n";

/// Names that must not be seen, and the secret.
const SEARCH: &str = "find . -mindepth 2 -not -path './.git/*' \\( -iname .git -o -name config \\)
    grep -rs SECRET . || true";

#[test]
fn nested_git_directory_at_any_depth_is_hidden() {
    let bench = Bench::new();
    bench.sh(&format!(
        "git init -q r; cd r; echo a > a.txt; git add a.txt; git commit -qm a; {NESTED}"
    ));
    let private = bench.build("r");
    assert!(private.present, "{:?}", private.notes);
    assert_eq!(bench.inside("r", &private, SEARCH), "");
    for name in ["a/b", "a/b/c/d", "x/bare.git"] {
        let named = |note: &String| note.contains(&format!("`{name}`"));
        assert!(
            private.notes.iter().any(named),
            "{name}: {:?}",
            private.notes
        );
    }
    // What the agent makes there is its own.
    let said = bench.inside(
        "r",
        &private,
        "ls a/b/c/d; git init -q a/b/c/d; git init -q --bare x/bare.git; test -d a/b/c/d/.git && echo made",
    );
    assert_eq!(said, "n\nmade\n");
}

#[test]
fn nested_git_directory_is_hidden_without_a_repository() {
    let bench = Bench::new();
    bench.sh(NESTED);
    assert!(bench.discover("").is_none());
    let notes = git::hide_git(&bench.path("outside"), &bench.path("mask")).unwrap();
    assert!(!notes.is_empty());
    let said = bench.inside("", &Default::default(), SEARCH);
    assert_eq!(said, "");
}

#[test]
fn bare_repository_that_is_committed_stays() {
    let bench = Bench::new();
    bench.sh(
        "git init -q r; cd r; mkdir fixtures; git init -q --bare fixtures/f; git init -q --bare fixtures/g
         git add fixtures/f; git commit -qm a; mkdir -p s/t; git init -q --bare s/t/u; git add s; git commit -qm s",
    );
    let private = bench.build("r");
    let said = bench.inside("r", &private, "ls fixtures s/t; git status --porcelain=v1");
    assert_eq!(said, "fixtures:\nf\n\ns/t:\nu\n");
    // In a sub-folder as well.
    let bench2 = Bench::new();
    bench2.sh("git init -q r; cd r; mkdir s; git init -q --bare s/f; git init -q --bare s/g; git add s/f; git commit -qm a");
    let private = bench2.build("r/s");
    assert_eq!(bench2.inside("r/s", &private, "ls"), "f\n");
}

#[test]
fn many_nested_repositories_are_hidden_and_counted() {
    let bench = Bench::new();
    bench.sh(
        "git init -q r; cd r; echo a > a; git add a; git commit -qm a
         for n in $(seq 300); do mkdir -p d/$n/e/.git; done",
    );
    let private = bench.build("r");
    assert_eq!(private.notes.len(), 6, "{:?}", private.notes);
    assert!(private.notes[5].contains("295 more"), "{:?}", private.notes);
    assert_eq!(bench.inside("r", &private, "find d -name .git"), "");
}

#[test]
fn tree_that_is_too_deep_is_hidden_from_there() {
    let bench = Bench::new();
    bench.sh(
        "git init -q r; cd r; echo a > a; git add a; git commit -qm a; python3 -c \"import os
for _ in range(40):
    os.mkdir('d' * 200); os.chdir('d' * 200)
os.mkdir('.git'); open('.git/config', 'w').write('SECRET')\"",
    );
    let private = bench.build("r");
    assert!(private.present);
    let told = |note: &String| note.contains("cannot be listed");
    assert!(private.notes.iter().any(told), "{:?}", private.notes.len());
    let said = bench.inside("r", &private, "find . -name .git -path '*d/.git' | wc -l");
    assert_eq!(said, "0\n");
}
