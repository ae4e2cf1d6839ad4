//! Nasty trees: each change is made through a real overlay, and the patch must make the same tree
//! of a pristine copy, and the first tree again when it is taken back.

#![allow(clippy::unwrap_used)]

use crate::shared::overlay as changes_overlay;
use crate::shared::within;

use changes_overlay::{Scene, summary};
use within::within;

/// What is in the folder, what the agent does, and what the change set then says.
struct Case(&'static str, &'static str, &'static str);

fn check(cases: &'static [Case]) {
    for Case(base, work, expected) in cases {
        within(60, move || {
            let scene = Scene::new(base, work);
            let set = scene.compute();
            assert_eq!(summary(&set), *expected, "base: {base}\nwork: {work}");
            scene.check(&set);
        });
    }
}

#[test]
fn plain_edits() {
    check(&[
        Case("echo a > f", "", ""),
        Case("echo a > f", "echo b > f", "M f"),
        Case("echo a > f", "echo b > g", "A g"),
        Case("echo a > f", "rm f", "D f"),
        Case("seq 100 > f", "sed -i 's/^50$/x/;s/^2$/y/' f", "M f"),
        Case("seq 100 > f", "sed -i 1d f; sed -i '$d' f", "M f"),
        Case(
            "mkdir -p a/b; echo 1 > a/b/c; echo 2 > a/d",
            "rm -r a",
            "D a/b/c, D a/d",
        ),
        Case(
            "echo 1 > a; mkdir d; echo 2 > d/b",
            "rm -r a d",
            "D a, D d/b",
        ),
        Case("touch e", "touch g; rm e", "D e, A g"),
        Case("touch e", "echo x > e", "M e"),
        Case("echo x > e", ": > e", "M e"),
        Case("echo a > f", "touch f", ""),
        Case("echo a > f", "cp f g; rm f; mv g f", ""),
        Case("echo a > f", "echo b > f; echo a > f", ""),
        Case("mkdir d; echo a > d/f", "chmod 700 d; touch d", ""),
        Case("", "mkdir -p a/b/c; echo x > a/b/c/d", "A a/b/c/d"),
        Case("", "", ""),
    ]);
}

#[test]
fn line_ends() {
    check(&[
        Case("printf 'a\\nb' > f", "printf 'a\\nb\\n' > f", "M f"),
        Case("printf 'a\\nb\\n' > f", "printf 'a\\nb' > f", "M f"),
        Case("printf 'a' > f", "printf 'b' > f", "M f"),
        Case("", "printf 'a' > f", "A f"),
        Case("printf 'a' > f", "rm f", "D f"),
        Case(
            "printf 'a\\r\\nb\\r\\nc\\r\\n' > f",
            "printf 'a\\r\\nx\\r\\nc\\r\\n' > f",
            "M f",
        ),
        Case(
            "printf 'a\\r\\nb\\r\\n' > f",
            "printf 'a\\nb\\n' > f",
            "M f",
        ),
        Case("printf 'a\\nb\\n' > f", "printf 'a\\r\\nb' > f", "M f"),
        Case("printf 'a\\rb\\rc' > f", "printf 'a\\rx\\rc' > f", "M f"),
        Case(
            "printf ' \\n\\t\\n\\n\\n' > f",
            "printf ' \\n\\n\\n\\n\\n \\n' > f",
            "M f",
        ),
        Case(
            "printf -- '--- a\\n+++ b\\n' > f",
            "printf -- '-- a\\n++ b\\n@@ -1 +1 @@\\n' > f",
            "M f",
        ),
        Case(
            "printf '\\\\ No newline at end of file' > f",
            "printf '\\\\ No newline\\n' > f",
            "M f",
        ),
        Case(
            "printf '\\xff\\xfe\\n' > f",
            "printf '\\xff\\xfd\\n' > f",
            "M f",
        ),
        Case(
            "head -c 900000 /dev/zero | tr '\\0' x > f; echo >> f",
            "echo y >> f",
            "M f",
        ),
        Case(
            "head -c 3000000 /dev/zero | tr '\\0' x > f",
            "echo y >> f",
            "M f bin",
        ),
    ]);
}

#[test]
fn modes() {
    check(&[
        Case("echo a > f", "chmod +x f", "M f mode"),
        Case("echo a > f; chmod +x f", "chmod -x f", "M f mode"),
        Case("echo a > f", "chmod 600 f", ""),
        Case("echo a > f; chmod 700 f", "chmod 711 f", ""),
        Case("echo a > f", "chmod g+x f", ""),
        Case("echo a > f", "echo b >> f; chmod +x f", "M f mode"),
        Case("echo a > f", "chmod 4755 f", "M f mode"),
        Case(
            "",
            "echo a > f; chmod 6755 f; mkdir -m 3777 d; echo > d/g",
            "A d/g, A f",
        ),
        Case("touch f", "chmod +x f", "M f mode"),
        Case("", "touch f; chmod +x f", "A f"),
        Case("touch f; chmod +x f", "rm f", "D f"),
        Case("printf '\\0' > f", "chmod +x f", "M f mode bin"),
        Case("echo a > f", "chmod 000 f", ""),
        Case("echo a > f", "echo b > f; chmod 000 f", "M f"),
        Case(
            "mkdir d; echo a > d/f",
            "echo b > d/f; echo c > d/g; chmod 000 d",
            "M d/f, A d/g",
        ),
        Case(
            "",
            "mkdir -p a/b; echo 1 > a/b/c; chmod 0 a/b/c a/b a",
            "A a/b/c",
        ),
        Case(
            "",
            "mkdir -p a/b; echo 1 > a/b/c; chmod 400 a/b; chmod 100 a",
            "A a/b/c",
        ),
        Case("echo a > f", "echo b > g; chmod 000 .", "A g"),
    ]);
}

#[test]
fn types() {
    check(&[
        Case(
            "mkdir d; echo 1 > d/a; echo 2 > d/b",
            "rm -r d; echo x > d",
            "A d, D d/a, D d/b",
        ),
        Case("echo 1 > d", "rm d; mkdir d; echo x > d/a", "D d, A d/a"),
        Case(
            "echo 1 > d",
            "rm d; mkdir -p d/d/d; echo x > d/d/d/d",
            "D d, A d/d/d/d",
        ),
        Case("echo 1 > d", "rm d; mkdir d", "D d, - d NotCarried"),
        Case("ln -s x l", "rm l; mkdir l; echo 1 > l/a", "D l, A l/a"),
        Case("mkdir l; echo 1 > l/a", "rm -r l; ln -s x l", "A l, D l/a"),
        Case(
            "mkdir t l; echo 1 > l/a; echo 1 > t/a",
            "rm -r l; ln -s t l",
            "A l, D l/a",
        ),
        Case(
            "mkdir t; ln -s t l; echo 1 > t/a",
            "rm l; mkdir l; echo 1 > l/a",
            "D l, A l/a",
        ),
        Case("echo x > f", "ln -sf x f", "D f, A f"),
        Case("ln -s x f", "rm f; echo x > f", "D f, A f"),
        Case("printf x > f", "ln -sf x f", "D f, A f"),
        Case("printf 'x\\0' > f", "ln -sf x f", "D f bin, A f"),
        Case("ln -s x l", "ln -sfn y l", "M l"),
        Case(
            "",
            "ln -s /etc/passwd l; ln -s nowhere m; ln -s ../../.. n",
            "A l, A m, A n",
        ),
        Case("ln -s /etc l", "rm l", "D l"),
        Case("", "ln -s $'a\\nb\\n' l; ln -s $'\\xff' m", "A l, A m"),
        Case("ln -s a l; ln -s b m", "touch -h l; ln -sfn b m", ""),
        Case(
            "ln -s m l; ln -s l m; ln -s s s",
            "rm *; mkdir l s; echo 1 > l/a; echo 2 > s/a",
            "D m, - l NotCarried, - l/a NotCarried, - s NotCarried, - s/a NotCarried",
        ),
        Case(
            "mkdir -p d/e",
            "rmdir d/e; rmdir d; echo 1 > d",
            "- d NotCarried",
        ),
        Case("mkdir d", "rmdir d; echo 1 > d", "A d"),
    ]);
}

#[test]
fn overlay_shapes() {
    check(&[
        Case(
            "mkdir d; echo 1 > d/a; echo 2 > d/b",
            "rm -r d; mkdir d; echo 1 > d/a; echo 3 > d/c",
            "D d/b, A d/c",
        ),
        Case(
            "mkdir -p d/e/f; echo 1 > d/e/f/g; echo 2 > d/h",
            "rm -r d; mkdir -p d/e; echo 9 > d/e/x",
            "D d/e/f/g, A d/e/x, D d/h",
        ),
        Case("mkdir d; echo 1 > d/a", "rm -r d; mkdir d", "D d/a"),
        Case(
            "mkdir d; echo 1 > d/a",
            "rm -r d; mkdir d; mkdir d/a; echo 2 > d/a/b",
            "D d/a, A d/a/b",
        ),
        Case(
            "mkdir -p d/a; echo 1 > d/a/b",
            "rm -r d; mkdir d; echo 2 > d/a",
            "A d/a, D d/a/b",
        ),
        Case("echo 1 > a; echo 2 > b", "rm a b; echo 1 > a", "D b"),
        Case(
            "mkdir d; echo 1 > d/a",
            "rm d/a; rmdir d; mkdir d; echo 1 > d/a",
            "",
        ),
        Case(
            "echo 1 > .gitignore; echo 2 > .x",
            "echo 3 > .gitignore",
            "M .gitignore",
        ),
        Case("mkdir e", "rmdir e; mkdir -p n/m", "- n/m NotCarried"),
        Case("echo 1 > a", "ln a b; echo 2 > a", "M a, A b"),
        Case(
            "for i in $(seq 40); do mkdir d$i; echo $i > d$i/f; done",
            "rm -r *; for i in $(seq 40); do echo x$i > d$i; done; rm d1?; rm d2? d3? d40 d[2-9]",
            "A d1, D d1/f, D d10/f, D d11/f, D d12/f, D d13/f, D d14/f, D d15/f, D d16/f, \
             D d17/f, D d18/f, D d19/f, D d2/f, D d20/f, D d21/f, D d22/f, D d23/f, D d24/f, \
             D d25/f, D d26/f, D d27/f, D d28/f, D d29/f, D d3/f, D d30/f, D d31/f, D d32/f, \
             D d33/f, D d34/f, D d35/f, D d36/f, D d37/f, D d38/f, D d39/f, D d4/f, D d40/f, \
             D d5/f, D d6/f, D d7/f, D d8/f, D d9/f",
        ),
    ]);
}

#[test]
fn renames() {
    check(&[
        Case("seq 9 > a; ln -s x l", "mv -f a l", "D a, D l, A l"),
        Case("seq 9 > a", "mv a b", "R a -> b"),
        Case("seq 9 > a", "mkdir d; mv a d/a", "R a -> d/a"),
        Case(
            "seq 9 > a; chmod +x a",
            "mv a b; chmod -x b",
            "R a -> b mode",
        ),
        Case("seq 99 > a", "mv a b; echo x >> b", "R a -> b"),
        Case(
            "seq 99 > a",
            "mv a b; echo x >> b; chmod +x b",
            "R a -> b mode",
        ),
        Case("seq 99 > a", "mv a b; seq 200 300 > b", "D a, A b"),
        Case("seq 99 > a", "mv a b; seq 5 > a", "M a, A b"),
        Case(
            "mkdir -p d/e; seq 9 > d/a; seq 7 > d/e/b",
            "mv d n",
            "R d/a -> n/a, R d/e/b -> n/e/b",
        ),
        Case(
            "seq 9 > a; seq 9 > b",
            "mkdir n; mv b n/b; mv a n/a",
            "R a -> n/a, R b -> n/b",
        ),
        Case("seq 9 > a", "mv a b; cp b c", "R a -> b, A c"),
        Case("seq 9 > a; seq 9 > b", "mv a c; rm b", "D b, R a -> c"),
        Case("ln -s to a", "mv a b", "R a -> b"),
        Case("printf 'to' > a", "ln -s to b; rm a", "D a, A b"),
        Case("touch a", "mv a b", "D a, A b"),
        Case("printf 'a\\0b' > a", "mv a b", "R a -> b bin"),
        Case(
            "printf 'a\\0b' > a",
            "mv a b; echo x >> b",
            "D a bin, A b bin",
        ),
        Case(
            "seq 9 > a",
            "mv a b; rm -rf a; mkdir a; mv b a/b",
            "R a -> a/b",
        ),
        Case(
            "mkdir a; seq 9 > a/b",
            "mv a/b x; rmdir a; mv x a",
            "R a/b -> a",
        ),
        Case(
            "seq 9 > a; seq 20 30 > b",
            "mv a t; mv b a; mv t b",
            "M a, M b",
        ),
        Case("seq 9 > 'a b'", "mv 'a b' $'c\\td'", "R a b -> \"c\\td\""),
    ]);
}

#[test]
fn binaries() {
    check(&[
        Case("", "printf 'a\\0b' > f", "A f bin"),
        Case("printf 'a\\0b' > f", "rm f", "D f bin"),
        Case("printf 'a\\0b' > f", "printf 'a\\0c' > f", "M f bin"),
        Case("printf 'a\\0b' > f", "echo text > f", "M f bin"),
        Case("echo text > f", "printf 'a\\0b' > f", "M f bin"),
        Case("printf 'a\\0b' > f", ": > f", "M f bin"),
        Case(
            "seq 9000 > f; printf 'a\\0b\\n' >> f",
            "seq 9001 > f; printf 'a\\0c' >> f",
            "M f",
        ),
        Case(
            "head -c 100000 /dev/urandom > f",
            "head -c 70001 /dev/urandom >> f",
            "M f bin",
        ),
        Case(
            "head -c 51 /dev/urandom > f; printf '\\0' >> f",
            "head -c 104 /dev/urandom > f; printf '\\0' >> f; chmod +x f",
            "M f mode bin",
        ),
        Case(
            "head -c 3900000 /dev/urandom | base64 > f",
            "sed -i '1000s/^/x/;40000d;$s/$/y/' f",
            "M f",
        ),
        Case("seq 2000000 > f", "sed -i '1000000s/^/x/' f", "M f bin"),
    ]);
}

#[test]
fn names() {
    check(&[
        Case("echo 1 > 'a b'", "echo 2 > 'a b'", "M a b"),
        Case(
            "",
            "touch 'a b' ' c' 'd ' 'x b/' 2>/dev/null || touch 'a b' ' c' 'd '",
            "A  c, A a b, A d ",
        ),
        Case(
            "",
            "echo 1 > 'd '; echo 2 > ' '; echo 3 > $'e\\t'",
            "A  , A d , A \"e\\t\"",
        ),
        Case(
            "echo 1 > $'a\\nb'",
            "echo 2 > $'a\\nb'; touch $'\\n'",
            "A \"\\n\", M \"a\\nb\"",
        ),
        Case(
            "",
            "touch $'\\n\\n' $'a\\nnew file mode'",
            "A \"\\n\\n\", A \"a\\nnew file mode\"",
        ),
        Case(
            "",
            "echo 1 > 'q\"q'; echo 1 > 'b\\b'; touch \"s's\"",
            "A b\\b, A q\"q, A s's",
        ),
        Case(
            "echo 1 > ./-rf",
            "echo 2 > ./-rf; touch ./--",
            "A --, M -rf",
        ),
        Case(
            "echo 1 > $'\\xff\\xfe'",
            "echo 2 > $'\\xff\\xfe'",
            "M \"\\377\\376\"",
        ),
        Case(
            "echo 1 > 'Grüße'",
            "echo 2 > 'Grüße'; touch 🦀",
            "M Grüße, A 🦀",
        ),
        Case(
            "mkdir a; echo 1 > a/b; echo 1 > 'a b'",
            "echo 2 > a/b; echo 3 > 'a b'",
            "M a b, M a/b",
        ),
        Case(
            "mkdir 'a b'; echo 1 > 'a b/c d'",
            "rm 'a b/c d'; touch 'a b/e f'",
            "D a b/c d, A a b/e f",
        ),
        Case(
            "mkdir 'x b'; touch 'x b/x b'",
            "chmod +x 'x b/x b'",
            "M x b/x b mode",
        ),
        Case(
            "",
            "touch a:b 'c*' '?' '[' '#' '~' ';' '$(x)'",
            "A #, A $(x), A ;, A ?, A [, A a:b, A c*, A ~",
        ),
        Case(
            "",
            "touch $'\\x01\\x7f\\x1b[31m'",
            "A \"\\001\\177\\033[31m\"",
        ),
        Case(
            "",
            "mkdir a; touch a/dev; mkdir dev; echo 1 > dev/null",
            "A a/dev, A dev/null",
        ),
        Case(
            "",
            "mkdir -p a b; echo 1 > a/a; echo 2 > b/b; mkdir -p a/b; echo 3 > a/b/a",
            "A a/a, A a/b/a, A b/b",
        ),
        Case("echo 1 > $'cr\\r'", "echo 2 > $'cr\\r'", "M \"cr\\r\""),
    ]);
}

#[test]
fn names_that_git_refuses() {
    check(&[
        Case(
            "",
            "mkdir s; mkdir s/.git; echo 1 > s/.git/config; echo 2 > s/f",
            "A s/f, - s/.git NotCarried",
        ),
        Case(
            "",
            "echo 1 > .GIT; echo 1 > git~1; echo 1 > '.git '; echo 1 > .git.",
            "- .GIT NotCarried, - .git  NotCarried, - .git. NotCarried, - git~1 NotCarried",
        ),
        Case("", "mkdir .git; echo 1 > .git/config; echo 1 > f", "A f"),
        Case(
            "mkdir .git; echo 1 > .git/config",
            "echo 2 > .git/config; rm -r .git",
            "",
        ),
        Case(
            "mkdir -p s/.git; echo 1 > s/.git/config; echo 1 > s/f",
            "rm -r s",
            "D s/f, - s/.git NotCarried",
        ),
        Case(
            "mkdir -p s/.git; echo 1 > s/.git/config; echo 1 > s/f",
            "rm -r s; echo 1 > s",
            "D s/f, - s NotCarried, - s/.git NotCarried",
        ),
        Case(
            "",
            "ln -s x .gitmodules; ln -s x GITMOD~1; echo 1 > .gitattributes",
            "A .gitattributes, - .gitmodules NotCarried, - GITMOD~1 NotCarried",
        ),
        Case("", "echo 1 > .gitmodules", "A .gitmodules"),
        Case("", "echo 1 > $'.g\\u200cit'", "- .g\u{200c}it NotCarried"),
        Case("", "touch 'a\\.git'", "- a\\.git NotCarried"),
    ]);
}

#[test]
fn what_would_be_a_git_directory_stays_behind() {
    check(&[
        Case(
            "mkdir d; echo 1 > d/a.md",
            "git init -q --bare --template= d; echo 2 > d/a.md; echo 1 > f; touch d/refs/x d/objects/x",
            "M d/a.md, A f, - d/HEAD GitDirectory, - d/config GitDirectory, \
             - d/objects GitDirectory, - d/objects/info NotCarried, - d/objects/pack NotCarried, \
             - d/refs GitDirectory, - d/refs/heads NotCarried, - d/refs/tags NotCarried",
        ),
        Case(
            "mkdir d d/objects d/Refs; echo 1 > d/a",
            "echo 'ref: refs/heads/x' > d/HEAD; ln -s a d/b",
            "A d/b, - d/HEAD GitDirectory",
        ),
        Case(
            "mkdir d; ln -s /x d/objects; ln -s /x d/refs",
            "ln -s refs/heads/x d/HEAD",
            "- d/HEAD GitDirectory",
        ),
        Case(
            "mkdir -p d/objects d/refs; echo 1 > head",
            "mv head d/HEAD",
            "D head, - d/HEAD GitDirectory",
        ),
        Case(
            "mkdir s; echo x > s/HEAD; echo 1 > s/f",
            "echo .. > s/commondir; echo 2 > s/f",
            "M s/f, - s/commondir GitDirectory",
        ),
        // One that is there already.
        Case(
            "git init -q --bare --template= d; echo 1 > d/description; echo 1 > f",
            "echo 2 > d/config; rm d/description; mkdir d/modules; echo 1 > d/modules/x; echo 2 > f",
            "M f, - d/config GitDirectory, - d/description GitDirectory, - d/modules GitDirectory",
        ),
        Case(
            "mkdir -p d/objects d/refs; touch d/HEAD d/refs/x d/a",
            "rm -r d/HEAD d/refs; echo 1 > d/a",
            "D d/HEAD, M d/a, D d/refs/x",
        ),
        Case(
            "mkdir -p d/objects d/refs; touch d/HEAD",
            "rm d/HEAD; mkdir d/HEAD; echo 1 > d/HEAD/x; echo 1 > d/config",
            "D d/HEAD, A d/HEAD/x, A d/config",
        ),
    ]);
}

#[test]
fn long_and_deep_names() {
    within(60, || {
        let long = "n".repeat(255);
        let scene = Scene::new("", &format!("echo 1 > {long}"));
        let set = scene.compute();
        assert_eq!(summary(&set), format!("A {long}"));
        scene.check(&set);
    });
    within(60, || {
        let deep = format!("d={}; mkdir -p $d; seq 9 > $d/f", vec!["d"; 120].join("/"));
        let scene = Scene::new(&deep, &format!("echo 1 >> {}/f", vec!["d"; 120].join("/")));
        let set = scene.compute();
        assert_eq!(set.changes.len(), 1);
        scene.check(&set);
    });
}

#[test]
fn special_files_are_reported_and_never_opened() {
    check(&[
        Case("", "mkfifo p", "- p Special"),
        Case("echo 1 > f", "rm f; mkfifo f", "- f Special"),
        Case(
            "mkdir d; echo 1 > d/a",
            "rm -r d; mkfifo d",
            "D d/a, - d Special",
        ),
        Case("mkfifo p", "rm p", "- p Special"),
        Case("mkfifo p", "rm p; echo 1 > p", "- p Special"),
        Case(
            "mkfifo p",
            "rm p; mkdir p; echo 1 > p/a",
            "- p Special, - p/a Special",
        ),
        Case(
            "echo 1 > f",
            "rm f; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"f\")'",
            "- f Special",
        ),
        Case(
            "mkdir d; mkfifo d/p; echo 1 > d/f",
            "rm -r d",
            "D d/f, - d/p Special",
        ),
    ]);
}

#[test]
fn sparse_files_cost_nothing() {
    check(&[
        Case("", "truncate -s 1T f; echo 1 > g", "A g, - f TooLarge"),
        Case("echo 1 > f", "truncate -s 1T f", "- f TooLarge"),
        Case("truncate -s 1T f", "rm f", "- f TooLarge"),
        Case("truncate -s 1T f", "rm f; echo 1 > f", "- f TooLarge"),
    ]);
}
