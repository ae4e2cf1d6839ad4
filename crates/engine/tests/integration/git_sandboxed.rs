//! Every shape of repository: git inside says what git outside says, works, and leaves the user's
//! own git directory as it was, byte for byte.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::shared::git_bench as bench;

use bench::Bench;

/// What must be equal inside and outside.
const LOOK: &str = "
git status --porcelain=v1
git status --porcelain=v1 --ignored
git diff
git diff --cached
git ls-files -s
git branch -a --format='%(refname)' | grep -v '(' || true
git rev-parse -q --verify HEAD || true
git log --oneline --decorate=full --all
git for-each-ref --format='%(objectname) %(refname) %(*objectname)' refs/heads refs/tags refs/remotes
git submodule status --recursive
";

/// What must work inside.
const WORK: &str = "
git fsck 2>&1 | grep -v '^dangling\\|^notice\\|^missing\\|^hint' | grep . && exit 7
echo more >> a-new-file
git add a-new-file
git commit -qm one
echo again >> a-new-file
git stash -q
git stash pop -q
git commit -qam two
git branch other
git worktree add -q \"$HOME/tree\" other
git -C \"$HOME/tree\" status --porcelain=v1
git worktree remove \"$HOME/tree\"
git log --format='%an %ae' -1
git fsck 2>&1 | grep -v '^dangling\\|^notice\\|^missing\\|^hint' | grep . && exit 7
true
";

const SEED: &str = "
mkdir -p src/deep; echo a > a; echo b > src/b; echo c > src/deep/c; ln -s a link
printf '*.o\\n/out/\\n' > .gitignore; echo x > x.o; mkdir out; echo y > out/y
printf 'x\\n' > run; chmod +x run
";

/// Builds the private directory of `folder` and compares; all that the script made must survive.
fn check(script: &str, folder: &str) -> (Bench, ringfence_engine::git::PrivateGit) {
    let bench = Bench::new();
    bench.sh(script);
    let outside = bench.path("outside");
    let before = bench.snapshot(&outside);
    let private = bench.build(folder);
    assert!(private.present, "{:?}", private.notes);
    let looked = bench.inside(folder, &private, LOOK);
    let worked = bench.inside(folder, &private, WORK);
    assert_eq!(worked, "agent agent@ringfence.invalid\n");
    assert!(
        bench.snapshot(&outside) == before,
        "the user's files changed"
    );
    assert_eq!(looked, bench.sh_in(&outside.join(folder), LOOK));
    (bench, private)
}

fn seeded(more: &str) -> String {
    format!("git init -q r; cd r; {SEED} git add .; git commit -qm first; {more}")
}

#[test]
fn a_fresh_repository_has_no_commit() {
    check(&format!("git init -q r; cd r; {SEED} git add a"), "r");
}

#[test]
fn an_ordinary_repository_dirty_and_staged() {
    check(
        &seeded(
            "echo changed > a; echo staged > src/b; git add src/b; rm src/deep/c; echo n > new;
             git mv run ran; git tag -a -m t v1; git tag light; git branch feature/x",
        ),
        "r",
    );
}

#[test]
fn a_change_of_the_same_size_in_the_same_second() {
    check(
        &seeded("printf 'z\\n' > a; printf 'z\\n' > src/b; git add a"),
        "r",
    );
}

#[test]
fn packed_refs_and_packed_objects() {
    check(
        &seeded(
            "git tag -a -m t v1; git branch one; git pack-refs --all; git gc -q;
             git branch two; git tag -a -m t v2; git branch -f one; echo x >> a; git commit -qam x",
        ),
        "r",
    );
}

#[test]
fn a_detached_head() {
    check(
        &seeded("echo x >> a; git commit -qam x; git checkout -q HEAD~1"),
        "r",
    );
}

#[test]
fn a_linked_worktree() {
    let (_, private) = check(
        &seeded("git worktree add -q ../w -b side; cd ../w; echo w > a; echo u > u"),
        "w",
    );
    assert_eq!(private.object_mounts.len(), 1);
}

#[test]
fn a_worktree_of_a_bare_repository() {
    check(
        &seeded(
            "cd ..; git clone -q --bare r p.git; git -C p.git worktree add -q ../w; echo d > w/a",
        ),
        "w",
    );
}

#[test]
fn submodules_nested_ones_too() {
    let (bench, private) = check(
        "for n in inner middle; do git init -q $n; echo $n > $n/$n; git -C $n add .;
           git -C $n commit -qm $n; done
         cd middle; git submodule --quiet add ../inner libs/inner; git commit -qm sub; cd ..
         git init -q r; cd r; echo a > a; git add a; git commit -qm a
         git submodule --quiet add --name odd/name ../middle vendor/middle; git commit -qm sub
         git submodule --quiet update --init --recursive
         echo dirty >> vendor/middle/libs/inner/inner; echo u > vendor/middle/u",
        "r",
    );
    assert_eq!(private.object_mounts.len(), 3);
    let said = bench.inside(
        "r",
        &private,
        "cd vendor/middle/libs/inner; git commit -qam in; git -C ../.. status --porcelain=v1;
         git -C ../../../.. status --porcelain=v1; stat -c %a .",
    );
    assert_eq!(said, " M libs/inner\n?? u\n M vendor/middle\n755\n");
}

#[test]
fn the_folder_of_a_submodule() {
    check(
        "git init -q inner; echo i > inner/i; git -C inner add .; git -C inner commit -qm i
         git init -q r; cd r; git submodule --quiet add ../inner lib; git commit -qm sub;
         echo dirty >> lib/i",
        "r/lib",
    );
}

#[test]
fn a_submodule_of_old_style() {
    check(
        "git init -q r; cd r; git init -q lib; echo l > lib/l; git -C lib add .;
         git -C lib commit -qm l; echo a > a; git add a; git -c advice.addEmbeddedRepo=false add lib; git commit -qm a;
         printf '[submodule \"lib\"]\\n\\tpath = lib\\n\\turl = ./lib\\n' > .gitmodules;
         echo dirty >> lib/l",
        "r",
    );
}

#[test]
fn sha256_objects() {
    check(
        "git init -q --object-format=sha256 r; cd r; echo a > a; git add a; git commit -qm a;
         echo b > b; git add b",
        "r",
    );
}

#[test]
fn reftable_refs() {
    check(
        "git init -q --ref-format=reftable r; cd r; echo a > a; git add a; git commit -qm a;
         git branch x; git tag -a -m t v1; echo b > b",
        "r",
    );
}

#[test]
fn a_split_index() {
    check(
        &seeded(
            "git update-index --split-index; echo new > z; git add z; git rm -q --cached src/b;
             echo changed > a; git add a; ls .git/sharedindex.* > /dev/null",
        ),
        "r",
    );
}

#[test]
fn an_index_of_version_4_with_caches() {
    let (bench, _) = check(
        &seeded(
            "git update-index --index-version 4; git update-index --force-untracked-cache;
             echo u > untracked; GIT_OPTIONAL_LOCKS=1 git status > /dev/null; echo changed > a",
        ),
        "r",
    );
    assert_eq!(
        bench.leaks(bench.path("outside").to_str().unwrap()),
        [""; 0]
    );
}

#[test]
fn flags_of_the_index() {
    let bench = Bench::new();
    // Git cannot stash where `add -N` was used, so this shape is only looked at.
    bench.sh(&seeded(
        "echo i > intent; git add -N intent; git update-index --skip-worktree a; rm a;
         git update-index --assume-unchanged src/b; echo hidden > src/b",
    ));
    let private = bench.build("r");
    let looked = bench.inside("r", &private, LOOK);
    assert_eq!(looked, bench.sh_in(&bench.path("outside/r"), LOOK));
}

#[test]
fn a_sparse_checkout_with_a_sparse_index() {
    check(
        &seeded(
            "mkdir p q; echo 1 > p/1; echo 2 > q/2; git add .; git commit -qm more;
             git sparse-checkout set --cone --sparse-index p; echo n > p/n",
        ),
        "r",
    );
}

#[test]
fn a_shallow_clone() {
    check(
        &seeded(
            "echo 2 >> a; git commit -qam 2; cd ..; git clone -q --depth 1 \"file://$PWD/r\" s;
             echo d > s/a",
        ),
        "s",
    );
}

#[test]
fn borrowed_objects() {
    let (_, private) = check(
        &seeded(
            "mkdir t; git clone -q --bare . t/.s; git clone -q --bare --shared t/.s t/.u
             git clone -q --shared t/.u x; mv x/* x/.git t; rm -r x; cd t
             printf '../../.u/objects\n' > .git/objects/info/alternates
             printf '../../.s/objects\n' > .u/objects/info/alternates
             echo '/.[su]/' > .git/info/exclude; git checkout -q -f; rm .[su]/HEAD
             echo 3 >> a; git commit -qam 3; echo d > d",
        ),
        "r/t",
    );
    let masked: Vec<bool> = private
        .object_mounts
        .iter()
        .map(|m| m.has_alternates)
        .collect();
    assert_eq!(masked, [true, true, false]);
}

#[test]
fn line_endings_by_every_setting() {
    for setting in ["core.autocrlf true", "core.autocrlf input", "core.eol crlf"] {
        check(
            &seeded(&format!(
                "git config {setting}; printf 'a\\r\\nb\\r\\n' > crlf; echo '*.t text' > .gitattributes;
                 printf 'x\\r\\n' > y.t; git add . 2> /dev/null; git commit -qm e; touch crlf a;
                 printf 'a\\r\\nc\\r\\n' > crlf"
            ))
            .replace("git add . 2> /dev/null", "git -c core.safecrlf=false add ."),
            "r",
        );
    }
}

#[test]
fn a_merge_that_waits_for_its_commit() {
    let (bench, private) = {
        let bench = Bench::new();
        bench.sh(&seeded(
            "git checkout -qb side; echo s > a; git commit -qam s; git checkout -q main;
             echo m > a; git commit -qam m; git merge -q side > /dev/null || true",
        ));
        let private = bench.build("r");
        (bench, private)
    };
    let outside = bench.sh_in(&bench.path("outside/r"), LOOK);
    assert_eq!(bench.inside("r", &private, LOOK), outside);
    let said = bench.inside(
        "r",
        &private,
        "echo r > a; git commit -qam merged; git rev-list --parents -1 HEAD | wc -w",
    );
    assert_eq!(said.trim(), "3");
}

#[test]
fn a_sub_folder_has_a_history_of_its_own() {
    let bench = Bench::new();
    bench.sh(&seeded(
        "printf '/src/gen/\\n*.tmp\\n!/src/keep.tmp\\n' >> .gitignore; mkdir src/gen; echo g > src/gen/g;
         echo t > src/t.tmp; echo k > src/keep.tmp; echo staged > src/b; git add src/b;
         echo dirty >> src/deep/c; echo u > src/u",
    ));
    let before = bench.snapshot(&bench.path("outside"));
    let private = bench.build("r/src");
    assert!(private.present, "{:?}", private.notes);
    let look =
        "git status --porcelain=v1 --ignored; git diff --relative; git diff --relative --cached";
    let looked = bench.inside("r/src", &private, look);
    let outside = bench.sh_in(&bench.path("outside/r/src"), &look.replace("=v1", "=v1 ."));
    assert_eq!(looked, outside.replace("src/", "").replace("a/src", "a"));
    let worked = bench.inside("r/src", &private, WORK);
    assert_eq!(worked, "agent agent@ringfence.invalid\n");
    assert!(
        bench.snapshot(&bench.path("outside")) == before,
        "the user's files changed"
    );
}

#[test]
fn a_sub_folder_that_no_commit_has() {
    for make in [
        "mkdir fresh; echo f > fresh/f",
        "mkdir fresh; echo f > fresh/f; git add fresh",
    ] {
        let bench = Bench::new();
        bench.sh(&seeded(make));
        let private = bench.build("r/fresh");
        let said = bench.inside(
            "r/fresh",
            &private,
            "git status --porcelain=v1; git add .; git commit -qm x; git ls-files",
        );
        assert!(said == "?? f\nf\n" || said == "A  f\nf\n", "{said}");
    }
}
