//! What crosses and what stays behind: crossing rules, a base that moved, bounds, prefixes.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use ringfence_engine::changes::{Bounds, ChangesError, Crossing, EntryType, render};
use ringfence_model::changes::ObjectHash;
use ringfence_model::changes::WhyOmitted;

use crate::shared::overlay as changes_overlay;
use changes_overlay::{Everything, Scene, Snapshot, run, shell, summary};

/// Refuses what is below `ignored` but for what is tracked, and records what it was asked.
#[derive(Default)]
struct Rules {
    ignored: Vec<&'static str>,
    hidden: Vec<&'static str>,
    tracked: Vec<&'static str>,
    asked: BTreeSet<String>,
}

impl Crossing for Rules {
    fn crosses(&mut self, path: &[u8], what: EntryType) -> Result<(), WhyOmitted> {
        let path = String::from_utf8_lossy(path).into_owned();
        let below = |dir: &&str| path == **dir || path.starts_with(&format!("{dir}/"));
        let why = if self.hidden.iter().any(&below) {
            Err(WhyOmitted::Hidden)
        } else if self.tracked.contains(&path.as_str()) && what == EntryType::File {
            Ok(())
        } else if self.ignored.iter().any(below) {
            Err(WhyOmitted::Ignored)
        } else {
            Ok(())
        };
        self.asked.insert(path);
        why
    }

    fn may_hold_crossing(&mut self, dir: &[u8]) -> bool {
        let below = format!("{}/", String::from_utf8_lossy(dir));
        self.tracked.iter().any(|path| path.starts_with(&below))
    }
}

fn with_rules(base: &str, work: &str, mut rules: Rules) -> (Scene, String, Rules) {
    let scene = Scene::new(base, work);
    let set = scene.compute_with(&mut rules).unwrap();
    let mut text = summary(&set);
    for omitted in &set.omitted {
        text += &format!("; {}={}/{}", omitted.path, omitted.size, omitted.files);
    }
    (scene, text, rules)
}

#[test]
fn an_ignored_directory_is_one_line_and_is_not_asked_about_below() {
    let rules = Rules {
        ignored: vec!["target"],
        ..Rules::default()
    };
    let work = "mkdir -p target/x; printf 12345 > target/a; printf 123 > target/x/b; echo 1 > f";
    let (_, text, rules) = with_rules("", work, rules);
    assert_eq!(text, "A f, - target Ignored; target=8/2");
    assert!(!rules.asked.contains("target/a"));
}

#[test]
fn a_tracked_file_in_an_ignored_directory_crosses() {
    let rules = Rules {
        ignored: vec!["out"],
        tracked: vec!["out/d/keep"],
        ..Rules::default()
    };
    let base = "mkdir -p out/d out/e; echo 1 > out/d/keep; echo 1 > out/e/x";
    let work =
        "echo 2 > out/d/keep; printf 1234 > out/d/junk; printf 12 > out/e/y; printf 1 > out/z";
    let (_, text, _) = with_rules(base, work, rules);
    assert_eq!(text, "M out/d/keep, - out Ignored; out=7/3");
}

#[test]
fn deleting_ignored_files_does_not_walk_them() {
    let rules = Rules {
        ignored: vec!["out", "big"],
        tracked: vec!["out/d/keep"],
        ..Rules::default()
    };
    let base = "mkdir -p out/d out/e big; echo 1 > out/d/keep; echo 1 > out/e/x; echo 1 > big/y";
    let (_, text, rules) = with_rules(base, "rm -r out big", rules);
    assert_eq!(
        text,
        "D out/d/keep, - big Ignored, - out Ignored; big=0/0; out=0/0"
    );
    assert!(!rules.asked.contains("big/y") && !rules.asked.contains("out/e/x"));
}

#[test]
fn a_new_file_where_ignored_files_stay_is_left_behind() {
    let rules = Rules {
        ignored: vec!["d/junk"],
        ..Rules::default()
    };
    let (_, text, _) = with_rules(
        "mkdir d; echo 1 > d/junk; echo 2 > d/f",
        "rm -r d; echo 3 > d",
        rules,
    );
    assert_eq!(
        text,
        "D d/f, - d Ignored, - d/junk Ignored; d=2/1; d/junk=2/1"
    );
}

#[test]
fn hidden_and_touched_and_ignored_files() {
    let rules = Rules {
        ignored: vec!["log"],
        hidden: vec![".env", "s"],
        ..Rules::default()
    };
    let base = "echo 1 > .env; echo 1 > log; mkdir s; echo 1 > s/key";
    let (_, text, _) = with_rules(base, "touch .env log; touch s; echo 22 > s/key", rules);
    assert_eq!(text, "- s Hidden; s=3/1");
    let rules = Rules {
        ignored: vec!["log"],
        hidden: vec![".env"],
        ..Rules::default()
    };
    let (_, text, _) = with_rules("echo 1 > .env", "rm .env; echo 1 > log", rules);
    assert_eq!(text, "- .env Hidden, - log Ignored; .env=2/1; log=2/1");
}

#[test]
fn a_base_file_that_moved_gets_no_hunk() {
    let base =
        "mkdir a b c d; echo 1 > a/f; echo 1 > b/f; echo 1 > c/f; echo 1 > a/g; echo 1 > d/f";
    let scene = Scene::prepare(base);
    std::thread::sleep(std::time::Duration::from_millis(30));
    scene.work(
        "echo 2 > a/f; echo 2 > b/n; rm c/f d/f; echo 2 > a/g",
        Snapshot::Skipped,
    );
    // In place: only the file moves. A new name beside it: the directory moves.
    run(&mut shell(
        "echo 3 >> a/f; touch b/other d/other",
        &scene.path("base"),
    ));
    let set = scene.compute();
    assert_eq!(
        summary(&set),
        "M a/g, D c/f, - a/f BaseMoved, - b/n BaseMoved, - d/f BaseMoved"
    );
    assert_eq!(set.moved().count(), 3);
}

#[test]
fn a_deleted_file_that_moved_stays_with_what_would_replace_it() {
    let scene = Scene::prepare("mkdir d e; echo 1 > d/f; echo 1 > d/g; echo 1 > e/f; echo 1 > h");
    std::thread::sleep(std::time::Duration::from_millis(30));
    scene.work(
        "rm -r d e h; echo 2 > d; mkdir h; echo 1 > h/x",
        Snapshot::Skipped,
    );
    run(&mut shell(
        "echo 3 >> d/f; rm e/f; echo 2 >> h",
        &scene.path("base"),
    ));
    let set = scene.compute();
    let expected = "D d/g, - d BaseMoved, - d/f BaseMoved, - h BaseMoved, - h/x BaseMoved";
    assert_eq!(summary(&set), expected);
}

#[test]
fn a_base_that_moves_before_rendering_is_an_error() {
    for meddle in [
        "echo 9 > f",
        "rm f",
        "rm f; mkfifo f",
        "chmod +x f",
        "ln -sf x f",
        "truncate -s 9T f",
    ] {
        let scene = Scene::new("echo 1 > f", "echo 2 > f");
        let set = scene.compute();
        run(&mut shell(meddle, &scene.path("base")));
        let rendered = render(&scene.sources(), &set, &mut Vec::new());
        assert!(
            matches!(&rendered, Err(ChangesError::MovedWhileRendering { path }) if path.0 == b"f"),
            "{meddle}: {rendered:?}"
        );
    }
    let scene = Scene::new("echo 1 > f", "echo 2 > f");
    let set = scene.compute();
    run(&mut shell("echo 3 > f", &scene.path("upper")));
    let rendered = render(&scene.sources(), &set, &mut Vec::new());
    assert!(matches!(
        rendered,
        Err(ChangesError::MovedWhileRendering { .. })
    ));
}

#[test]
fn content_that_is_elsewhere_fails_closed() {
    for (attribute, on) in [
        ("user.overlay.redirect", "d"),
        ("user.overlay.metacopy", "f"),
        ("user.overlay.redirect", "f"),
        ("user.overlay.metacopy", "d"),
    ] {
        let scene = Scene::new("mkdir d; echo 1 > f", "touch d/x; echo 2 > f");
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(scene.path("upper").join(on), attribute, b"/x", flags).unwrap();
        let computed = scene.compute_with(&mut Everything);
        assert!(
            matches!(&computed, Err(ChangesError::OverlayAttribute { path, .. }) if path.0 == on.as_bytes()),
            "{attribute} on {on}: {computed:?}"
        );
    }
}

#[test]
fn attributes_that_an_agent_sets_mean_nothing() {
    let set = "python3 -c 'import os; [os.setxattr(p, \"user.overlay.\" + n, b\"y\") \
               for p in (\"d\", \"d/f\") for n in (\"opaque\", \"redirect\", \"metacopy\")]'";
    let scene = Scene::new("mkdir d; echo 1 > d/f; echo 1 > d/g", set);
    let computed = scene.compute();
    assert_eq!(summary(&computed), "");
    scene.check(&computed);
}

#[test]
fn bounds_on_files_lists_and_changes() {
    let mut scene = Scene::new(
        "head -c 200 /dev/zero > same; head -c 200 /dev/zero > old; echo 1 > f",
        "chmod +x same; head -c 101 /dev/zero > big; rm old; head -c 200 /dev/zero > f; echo 1 > ok",
    );
    scene.bounds = Bounds {
        file_bytes: 100,
        ..Bounds::default()
    };
    let set = scene.compute();
    let expected = "A ok, M same mode bin, - big TooLarge, - f TooLarge, - old TooLarge";
    assert_eq!(summary(&set), expected);
    scene.check(&set);

    let mut scene = Scene::new("", "for i in 1 2 3 4 5; do mkfifo p$i; done; touch a b c");
    scene.bounds = Bounds {
        omitted_entries: 3,
        ..Bounds::default()
    };
    let set = scene.compute();
    assert!(set.omitted_truncated && set.omitted.len() == 3 && set.changes.len() == 3);
    scene.bounds = Bounds {
        changes: 2,
        ..Bounds::default()
    };
    let computed = scene.compute_with(&mut Everything);
    assert!(matches!(
        computed,
        Err(ChangesError::TooManyChanges { bound: 2 })
    ));
}

#[test]
fn what_is_read_is_bounded_however_little_it_takes_on_disk() {
    let mut scene = Scene::new(
        "",
        "truncate -s 600 a; truncate -s 600 b; truncate -s 300 c",
    );
    scene.bounds = Bounds {
        read_bytes: 1000,
        ..Bounds::default()
    };
    let set = scene.compute();
    assert_eq!(set.changes.len(), 2, "{}", summary(&set));
    assert_eq!(set.omitted.len(), 1);
    assert_eq!(set.omitted[0].why, WhyOmitted::TooLarge);
}

#[test]
fn a_patch_over_its_bound_leaves_the_largest_behind() {
    let base = "mkdir d; seq 9000 > d/big; echo 1 > small; ln -s x l; seq 7000 > moved; seq 9 > q";
    let work = "rm -r d; echo 1 > d; echo 2 > small; seq 5000 > new; rm l; seq 6000 > l; \
                mv moved m2; echo x >> q";
    let mut scene = Scene::new(base, work);
    scene.bounds = Bounds {
        patch_bytes: 4000,
        ..Bounds::default()
    };
    let set = scene.compute();
    let expected = "R moved -> m2, M q, M small, - d TooLarge, - d/big TooLarge, - l TooLarge, \
                    - l TooLarge, - new TooLarge";
    assert_eq!(summary(&set), expected);
    assert!(scene.render(&set).1.bytes <= 4000);
    scene.check(&set);
}

#[test]
fn a_rename_over_the_bound_leaves_both_names_behind() {
    let mut scene = Scene::new(
        "seq 5000 > a",
        "mv a b; seq 9000 9500 | sed -i '2r /dev/stdin' b; touch c",
    );
    scene.bounds = Bounds {
        patch_bytes: 1000,
        ..Bounds::default()
    };
    let set = scene.compute();
    assert_eq!(summary(&set), "A c, - a TooLarge, - b TooLarge");
    scene.check(&set);
}

#[test]
fn a_sub_folder_has_its_prefix_everywhere() {
    let mut scene = Scene::new(
        "seq 9 > a; echo 1 > 'b c'",
        "mv a n; rm 'b c'; mkfifo p; mkdir s; echo 2 > s/x",
    );
    scene.prefix = "süb/dir".into();
    let mut rules = Rules::default();
    let set = scene.compute_with(&mut rules).unwrap();
    let expected = "D süb/dir/b c, R süb/dir/a -> süb/dir/n, A süb/dir/s/x, - süb/dir/p Special";
    assert_eq!(summary(&set), expected);
    assert!(rules.asked.contains("s/x") && rules.asked.contains("b c"));
    scene.check(&set);
}

#[test]
fn ids_are_those_of_the_repository() {
    for (format, hash) in [("sha1", ObjectHash::Sha1), ("sha256", ObjectHash::Sha256)] {
        let base = format!(
            "git init -q --object-format={format} .; seq 9 > f; printf '\\0' > b; \
                            echo 1 > m; ln -s to l; git add -A; git commit -qm x"
        );
        let work = "echo x >> f; printf '\\1\\0' > b; mkdir d; mv m d/m; ln -sfn at l; touch e";
        let mut scene = Scene::new(&base, work);
        scene.hash = hash;
        let set = scene.compute();
        assert_eq!(summary(&set), "M b bin, R m -> d/m, A e, M f, M l");
        scene.check(&set);
        for change in &set.changes {
            let path = scene.path("after").join(change.path.to_text());
            let new = change.new.as_ref().unwrap();
            if new.mode != ringfence_model::changes::FileMode::Symlink {
                let script = format!("git hash-object {}", path.display());
                let oid = run(&mut shell(&script, &scene.path("base")));
                assert_eq!(String::from_utf8(oid).unwrap().trim(), new.oid);
            }
        }
    }
}

/// Where git has one way to say a thing, ours is the same, byte for byte.
#[test]
fn patches_are_written_as_git_writes_them() {
    let base = "git init -q .; seq 9 > f; seq 9 > 'a b'; seq 9 > $'t\\tb'; seq 9 > ü; touch e; \
                seq 9 > x; chmod +x x; seq 9 > m; ln -s to l; seq 50 > r; printf 'no' > n; \
                printf 'q' > 'q\"q'; echo w > ' w '; git add -A; git commit -qm x";
    let work = "echo a >> f; echo a >> 'a b'; echo a >> $'t\\tb'; sed -i 5d ü; rm e; echo e > 'e 2'; \
                rm x; chmod +x m; ln -sfn at l; mv r 'r r'; echo a >> n; : > 'q\"q'; mkdir s; \
                printf 'abc' > s/new; rm ' w '";
    let scene = Scene::new(base, work);
    let set = scene.compute();
    let (patch, stats) = scene.render(&set);
    let git = "rm -rf .git; cp -a ../base/.git .git; git add -A; \
               git -c core.quotePath=true -c diff.suppressBlankEmpty=false diff --cached \
               --full-index --binary -M60% HEAD";
    let theirs = run(&mut shell(git, &scene.path("after")));
    assert_eq!(
        String::from_utf8_lossy(&patch),
        String::from_utf8_lossy(&theirs)
    );
    let numbers = run(&mut shell(
        "git diff --cached --shortstat -M60% HEAD",
        &scene.path("after"),
    ));
    let expected = format!(
        " {} files changed, {} insertions(+), {} deletions(-)\n",
        stats.files, stats.insertions, stats.deletions
    );
    assert_eq!(String::from_utf8_lossy(&numbers), expected);
    scene.check(&set);
}

#[test]
fn modes_of_the_layer_are_put_back_and_the_base_is_never_touched() {
    let scene = Scene::new(
        "mkdir d; echo 1 > d/f; chmod 500 d",
        "mkdir -p a/b; echo 1 > a/b/c; chmod 4000 a/b/c; chmod 0 a/b; chmod 1100 a; chmod 0 .",
    );
    let ctimes = |name: &str| {
        run(&mut shell(
            "find . -printf '%P %C@ %m\\n' | sort",
            &scene.path(name),
        ))
    };
    let before = ctimes("base");
    let set = scene.compute();
    assert_eq!(summary(&set), "A a/b/c");
    scene.render(&set);
    assert_eq!(before, ctimes("base"));
    let mode = |path: &str| {
        fs::symlink_metadata(scene.path(path)).map(|meta| meta.permissions().mode() & 0o7777)
    };
    assert_eq!(mode("upper").unwrap(), 0);
    fs::set_permissions(scene.path("upper"), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(mode("upper/a").unwrap(), 0o1100);
    fs::set_permissions(scene.path("upper/a"), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(mode("upper/a/b").unwrap(), 0);
    fs::set_permissions(scene.path("upper/a/b"), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(mode("upper/a/b/c").unwrap(), 0o4000);
}
