//! Checkpoints, rollbacks, forks and deep stacks: a sealed state never moves again.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use ringfence_engine::layers;

use crate::sandbox::kit::{Kit, TREE, lasting, text};
use crate::support::expect;

const DATABASE: &str = "python3 -c 'import sqlite3; c = sqlite3.connect(\"data.db\"); \
    c.execute(\"create table if not exists t (n)\"); c.execute(\"insert into t values (1)\"); \
    c.commit(); print(c.execute(\"select count(*) from t\").fetchone()[0])'";

#[test]
fn r71_a_rollback_brings_every_file_back_and_ends_what_runs() -> Result<()> {
    lasting("rollback", |kit| {
        let id = kit.create(&[])?;
        kit.sh(
            &id,
            &format!(
                "{DATABASE}; mkdir -p ~/.config /tmp/build; echo c > ~/.config/c; echo b > /tmp/build/b; \
                 chmod 640 a.txt; ln -s b /tmp/build/l; git checkout -qb work; echo w > w; git add w; \
                 git -c user.name=a -c user.email=a@b commit -qm w"
            ),
        )?;
        let before = kit.sh(&id, TREE)?;
        kit.done(&["sandbox", "checkpoint", &id, "--name", "good"])?;
        kit.sh(
            &id,
            "rm -rf /workspace/* /workspace/.git /workspace/.gitignore ~/.config /tmp/*; echo later > /tmp/marker; \
             mkdir src; echo x > src/marker; sleep 1000 > /dev/null 2>&1 & sleep 1000 > /dev/null 2>&1 &",
        )?;
        ensure!(kit.sh(&id, TREE)? != before);
        let done = kit.json(&["sandbox", "rollback", &id, "good", "--json"])?;
        expect(&done, "processes_ended", 2)?;
        let after = kit.sh(&id, TREE)?;
        ensure!(after == before, "{before}\n{after}");
        ensure!(!after.contains("marker"));
        ensure!(kit.sh(&id, DATABASE)? == "2\n", "the database goes on");
        ensure!(
            kit.sh(&id, "git status --short; git log --format=%s -1")?
                .ends_with("w\n")
        );
        // Again, from a running and from a stopped sandbox, and to a state before and after.
        kit.done(&["sandbox", "checkpoint", &id, "--name", "later"])?;
        kit.done(&["sandbox", "rollback", &id, "good"])?;
        ensure!(kit.sh(&id, TREE)? == before);
        kit.done(&["sandbox", "rollback", &id, "later"])?;
        ensure!(kit.sh(&id, DATABASE)? == "3\n");
        let tree = kit.json(&["sandbox", "checkpoints", &id, "--json"])?;
        ensure!(
            tree[1]["parent"] == "good" && tree[0]["current"] == true,
            "{tree}"
        );
        kit.fails(2, "no checkpoint", &["sandbox", "rollback", &id, "none"])?;
        Ok(())
    })
}

#[test]
fn r71_a_rollback_mends_a_sandbox_whose_top_is_gone() -> Result<()> {
    lasting("mends", |kit| {
        let id = kit.create(&[])?;
        kit.sh(&id, "echo good > good")?;
        kit.done(&["sandbox", "checkpoint", &id, "--name", "good"])?;
        kit.sh(&id, "echo bad > bad")?;
        kit.done(&["sandbox", "stop", &id])?;
        std::fs::remove_dir_all(kit.state_path("sandboxes").join(&id).join("top"))?;
        kit.expect_state(&id, "broken")?;
        kit.done(&["sandbox", "rollback", &id, "good"])?;
        ensure!(kit.sh(&id, "cat good; test ! -e bad")? == "good\n");
        Ok(())
    })
}

/// Writes without pause through a descriptor and through a shared mapping that are both open.
const WRITER: &str = r#"python3 - > /dev/null 2>&1 <<'END' &
import mmap, os
f = open("log", "wb", buffering=0)
m = os.open("map", os.O_RDWR | os.O_CREAT)
os.ftruncate(m, 8192)
view = mmap.mmap(m, 8192)
n = 0
while True:
    n += 1
    view[:8] = view[4096:4104] = n.to_bytes(8, "little")
    f.write(b"%d\n" % n)
    if n > 20000:
        f.seek(0); f.truncate(0); n = 0
END
until test -s log; do :; done"#;

#[test]
fn a_checkpoint_stands_still_while_its_writer_goes_on() -> Result<()> {
    lasting("frozen", |kit| {
        let id = kit.create(&[])?;
        kit.sh(&id, WRITER)?;
        let mut sealed = Vec::new();
        for name in ["one", "two"] {
            let done = kit.json(&["sandbox", "checkpoint", &id, "--name", name, "--json"])?;
            let layer = kit.state_path("layers").join(text(&done, "layer"));
            sealed.push((layer.clone(), digest(&layer)?));
        }
        expect(&kit.status(&id)?, "processes", 1)?;
        let look = "sha256sum log map";
        let fork = kit.done(&["sandbox", "fork", &id, "--from", "one"])?;
        let fork = fork.trim();
        let frozen = kit.sh(fork, look)?;
        // It writes on, and is seen to.
        let shared =
            |shell: &str| kit.done(&["sandbox", "exec", &id, "--shared", "--", "sh", "-c", shell]);
        let now = shared(look)?;
        kit.until("writing", || Ok(shared(look)? != now))?;
        ensure!(kit.sh(fork, look)? == frozen, "the fork moved");
        for (layer, before) in &sealed {
            ensure!(digest(layer)? == *before, "{layer:?} moved");
        }
        let writer = kit.status(&id)?;
        expect(&writer, "processes", 1)?;
        expect(&writer, "incarnation", 1)
    })
}

fn digest(layer: &Path) -> Result<String> {
    let opened = File::open(layer).with_context(|| format!("{layer:?}"))?;
    Ok(format!("{:?}", layers::digest(opened.as_fd())?))
}

#[test]
fn deep_stacks_are_made_flat_and_show_the_same() -> Result<()> {
    lasting("deep", |kit| {
        let id = kit.create(&["--checkpoint", "each-exec"])?;
        for n in 1..=40 {
            kit.sh(
                &id,
                &format!(
                    "echo {n} > f{n}; rm -f f$(({n} - 3)); echo {n} >> a.txt; mkdir -p d{n}/x; echo {n} > d{n}/x/y; \
                     rm -rf d$(({n} - 2)); mkdir -p src; echo {n} > src/n; \
                     if [ $(({n} % 7)) = 0 ]; then rm -rf src; mkdir src; echo new{n} > src/only; fi; \
                     echo {n} > ~/h$(({n} % 5)); chmod $((600 + {n} % 2 * 40)) a.txt"
                ),
            )?;
        }
        let seen = kit.sh(&id, TREE)?;
        let status = kit.sh(&id, "git status --short")?;
        ensure!(
            status.contains("M a.txt") && status.contains("?? f40"),
            "{status}"
        );
        kit.until("flat", || {
            Ok(kit.status(&id)?["layers"]
                .as_u64()
                .is_some_and(|layers| layers <= 14))
        })?;
        ensure!(
            kit.sh(&id, TREE)? == seen,
            "the squashed stack shows something else"
        );
        ensure!(kit.sh(&id, "git status --short")? == status);
        let checkpoints = kit.json(&["sandbox", "checkpoints", &id, "--json"])?;
        ensure!(
            checkpoints.as_array().is_some_and(|list| list.len() >= 40),
            "{checkpoints}"
        );
        // Where it came from is still known.
        ensure!(
            checkpoints
                .as_array()
                .is_some_and(|list| list.iter().all(|row| row["current"] == true)),
            "{checkpoints}"
        );
        let since = kit.done(&["sandbox", "diff", &id, "--from", "exec-38"])?;
        ensure!(
            since.contains("b/f40") && since.contains("b/f39") && !since.contains("b/f38"),
            "{since}"
        );
        ensure!(
            since.contains("+40\n") && since.contains(" 38\n"),
            "{since}"
        );
        let all = kit.done(&["sandbox", "diff", &id])?;
        ensure!(all.contains("b/f38") && !all.contains("b/f1\n"), "{all}");
        // Each of them can still be reached.
        kit.done(&["sandbox", "rollback", &id, "exec-5"])?;
        let back = kit.sh(
            &id,
            "cat f5 d5/x/y src/n; tail -n 1 a.txt; ls | tr '\\n' ' '",
        )?;
        ensure!(
            back == "5\n5\n5\n5\nREADME.md a.txt d4 d5 f3 f4 f5 src ",
            "{back}"
        );
        kit.done(&["sandbox", "rollback", &id, "exec-40"])?;
        ensure!(kit.sh(&id, TREE)? == seen);
        Ok(())
    })
}

#[test]
fn a_directory_of_a_sealed_layer_can_be_moved() -> Result<()> {
    lasting("moved", |kit| {
        let id = kit.create(&[])?;
        kit.sh(&id, "mkdir -p d/e; echo x > d/e/x; chmod 600 d/e/x")?;
        kit.done(&["sandbox", "checkpoint", &id, "--name", "one"])?;
        let seen = kit.sh(
            &id,
            "mv d moved; mv src lib; test ! -e d; test ! -e src; stat -c %a moved/e/x; cat moved/e/x lib/deep/x.c; \
             git mv a.txt b.txt; ls",
        )?;
        ensure!(
            seen == "600\nx\nint x;\nREADME.md\nb.txt\nlib\nmoved\n",
            "{seen}"
        );
        let answer = kit.call(&["sandbox", "fs", "mv", &id, "lib", "src"])?;
        answer.exits(0)?;
        ensure!(kit.sh(&id, "cat src/deep/x.c; test ! -e lib")? == "int x;\n");
        Ok(())
    })
}

#[test]
fn forks_are_apart_from_each_other_and_from_their_origin() -> Result<()> {
    lasting("forks", |kit| {
        let id = kit.create(&["--tag", "family"])?;
        kit.sh(&id, "echo origin > who; echo h > ~/h")?;
        let forks = kit.json(&["sandbox", "fork", &id, "--count", "3", "--json"])?;
        let forks: Vec<&str> = (0..3).map(|n| text(&forks[n], "sandbox")).collect();
        for fork in &forks {
            ensure!(kit.sh(fork, &format!("cat who ~/h; echo {fork} > who"))? == "origin\nh\n");
        }
        for fork in &forks {
            ensure!(kit.sh(fork, "cat who")?.trim() == *fork);
            expect(&kit.status(fork)?, "forked_from", id.as_str())?;
        }
        ensure!(kit.sh(&id, "cat who")? == "origin\n");
        // The origin can go, its forks do not notice.
        kit.done(&["sandbox", "rm", &id])?;
        ensure!(kit.sh(forks[0], "cat ~/h who")? == format!("h\n{}\n", forks[0]));
        let grandchild = kit.done(&["sandbox", "fork", forks[0]])?;
        ensure!(kit.sh(grandchild.trim(), "cat who")?.trim() == forks[0]);
        ensure!(family(kit)? == 4);
        kit.done(&["sandbox", "rm", "--tag", "family"])?;
        ensure!(family(kit)? == 0);
        Ok(())
    })
}

fn family(kit: &Kit<'_>) -> Result<usize> {
    Ok(kit.states()?.len())
}
