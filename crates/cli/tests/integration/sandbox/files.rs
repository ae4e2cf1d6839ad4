//! What a policy says about files, for sandboxes that last: it holds in each execution, in forks and
//! after a rollback, and what the agent left in one is of no use to it in the next.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::sandbox::kit::{Kit, lasting, path};
use crate::support::fingerprint;

/// A policy of the host, outside of the folder.
fn policy(kit: &Kit<'_>, text: &str) -> Result<String> {
    let file = kit.env.put(kit.fixture, "../policy.toml", text)?;
    Ok(path(&file).to_owned())
}

/// A sandbox of the folder as it is, under a policy.
fn made(kit: &Kit<'_>, text: &str) -> Result<String> {
    let file = policy(kit, text)?;
    let folder = path(&kit.fixture.folder);
    kit.create_of(&["--repo", folder, "--policy", &file])
}

/// `letter path` of each change, and `path reason` of each that stayed behind.
fn changes(kit: &Kit<'_>, words: &[&str]) -> Result<(Vec<String>, Vec<String>)> {
    let set = kit.json(&[&["sandbox", "diff", "--json"], words].concat())?;
    let list = |name: &str| set[name].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let changed = list("changes")
        .iter()
        .map(|change| {
            let kind = change["kind"].as_str().unwrap_or("renamed").to_owned();
            format!("{kind} {}", text(&change["path"]))
        })
        .collect();
    let omitted = list("omitted")
        .iter()
        .map(|omitted| format!("{} {}", text(&omitted["path"]), text(&omitted["why"])))
        .collect();
    Ok((changed, omitted))
}

fn expect(kit: &Kit<'_>, words: &[&str], changed: &[&str], omitted: &[&str]) -> Result<()> {
    let (have, left) = changes(kit, words)?;
    ensure!(
        have == changed,
        "{words:?}: {have:?} instead of {changed:?}"
    );
    ensure!(
        left == omitted,
        "{words:?}: {left:?} instead of {omitted:?}"
    );
    let patch = kit.done(&[&["sandbox", "diff"], words].concat())?;
    ensure!(!patch.contains("canary-hidden"), "{patch}");
    Ok(())
}

fn secrets(kit: &Kit<'_>) -> Result<()> {
    let script = "echo canary-hidden > .env; ln .env src/alias; mkdir -p secrets src/more; \
        echo canary-hidden > secrets/deep; echo canary-hidden > src/more/KEY.Pem; ln -s ../.env src/soft";
    kit.env
        .as_owner(kit.fixture, &kit.fixture.folder, &["sh", "-c", script])?;
    Ok(())
}

const HIDE: &str = "[files]\nhide = ['.env*', '**/*.pem', 'secrets/**']\n";
const FIND: &str = "grep -rl canary-hidden /workspace; cat src/soft src/alias .env; \
    test ! -e .env && test ! -e secrets && test ! -e src/alias && test ! -e src/more/KEY.Pem && echo absent";

#[test]
fn what_is_hidden_is_absent_in_every_execution() -> Result<()> {
    lasting("hidden", |kit| {
        secrets(kit)?;
        let before = fingerprint(&kit.fixture.folder)?;
        let id = made(kit, HIDE)?;
        let look = |id: &str| -> Result<()> {
            let said = kit.sh(id, &format!("{{ {FIND}; }} 2> /dev/null"))?;
            ensure!(said == "absent\n", "{said}");
            Ok(())
        };
        look(&id)?;
        expect(kit, &[&id], &[], &[])?;
        kit.sh(&id, "echo x >> a.txt")?;
        kit.done(&["sandbox", "checkpoint", &id, "--name", "one"])?;
        look(&id)?;
        expect(kit, &[&id], &["modified a.txt"], &[])?;
        // Made anew, it is the agent's own, and stays behind.
        kit.sh(&id, "echo mine > .env; echo mine > .ENV.x; mkdir secrets; echo mine > secrets/new; echo mine > src/alias; cat .env")?;
        let left = [
            ".ENV.x hidden",
            ".env hidden",
            "secrets hidden",
            "src/alias hidden",
        ];
        expect(kit, &[&id], &["modified a.txt"], &left)?;
        kit.done(&["sandbox", "checkpoint", &id, "--name", "two"])?;
        kit.done(&["sandbox", "stop", &id])?;
        let said = kit.sh(&id, "cat .env secrets/new; ls secrets")?;
        ensure!(said == "mine\nmine\nnew\n", "{said}");
        // Removed with all that is around it, nothing of it is in the patch.
        kit.sh(&id, "rm -rf src secrets .env")?;
        let (changed, _) = changes(kit, &[&id])?;
        ensure!(
            changed.iter().any(|line| line == "deleted src/main.c"),
            "{changed:?}"
        );
        ensure!(
            !changed
                .iter()
                .any(|line| line.contains("alias") || line.contains("Pem")),
            "{changed:?}"
        );
        let patch = kit.done(&["sandbox", "diff", &id])?;
        ensure!(!patch.contains("canary-hidden"), "{patch}");
        let fork = kit.done(&["sandbox", "fork", &id, "--from", "one"])?;
        look(fork.trim())?;
        expect(kit, &[fork.trim()], &["modified a.txt"], &[])?;
        kit.done(&["sandbox", "rollback", &id, "one"])?;
        look(&id)?;
        expect(kit, &[&id], &["modified a.txt"], &[])?;
        ensure!(
            fingerprint(&kit.fixture.folder)? == before,
            "the folder changed"
        );
        Ok(())
    })
}

#[test]
fn what_is_hidden_stays_hidden_in_a_deep_stack() -> Result<()> {
    lasting("hidden-deep", |kit| {
        secrets(kit)?;
        let id = made(kit, HIDE)?;
        for number in 0..14 {
            kit.sh(&id, &format!("echo {number} > n; echo {number} > .env; test {number} != 9 || rm .env; mkdir -p secrets; echo > secrets/{number}"))?;
            kit.done(&[
                "sandbox",
                "checkpoint",
                &id,
                "--name",
                &format!("c{number}"),
            ])?;
        }
        kit.sh(&id, "rm -rf .env secrets")?;
        kit.done(&["sandbox", "checkpoint", &id, "--name", "last"])?;
        kit.until("flat", || {
            Ok(kit.status(&id)?["layers"].as_u64().is_some_and(|n| n <= 12))
        })?;
        let said = kit.sh(&id, &format!("{{ {FIND}; }} 2> /dev/null"))?;
        ensure!(said == "absent\n", "{said}");
        let (changed, _) = changes(kit, &[&id])?;
        ensure!(changed == ["added n"], "{changed:?}");
        Ok(())
    })
}

#[test]
fn what_is_tracked_and_hidden_is_in_no_object() -> Result<()> {
    lasting("hidden-tracked", |kit| {
        let file = policy(kit, "[files]\nhide = ['src/main.c']\n")?;
        let folder = path(&kit.fixture.folder).to_owned();
        let words = [
            "sandbox", "create", "--repo", &folder, "--base", "main", "--policy", &file,
        ];
        let output = kit.call(&words)?;
        output.exits(0)?;
        ensure!(
            output.stderr.contains("git does not work inside"),
            "{}",
            output.tail()
        );
        let id = output.stdout.trim();
        let said = kit.sh(id, "test -e .git && echo git; test -e src/main.c && echo file; find /.ringfence -name '*.pack' -o -path '*/objects/*'; ls src")?;
        ensure!(said == "deep\n", "{said}");
        kit.sh(id, "rm -r src")?;
        let (changed, omitted) = changes(kit, &[id])?;
        ensure!(changed == ["deleted src/deep/x.c"], "{changed:?}");
        ensure!(omitted == ["src/main.c hidden"], "{omitted:?}");
        Ok(())
    })
}

/// The copy of a folder does not know that two names were one file.
#[test]
fn what_is_tracked_by_another_name_is_in_no_object() -> Result<()> {
    lasting("hidden-alias", |kit| {
        let script = "echo canary-hidden > k.pem; ln k.pem src/ok.txt; echo k.pem >> .gitignore; \
            git add src/ok.txt && git -c user.name=a -c user.email=a@example.org commit -qm more";
        let folder = kit.fixture.folder.clone();
        kit.env
            .as_owner(kit.fixture, &folder, &["sh", "-c", script])?;
        for hide in ["**/*.pem", ".git"] {
            let id = made(kit, &format!("[files]\nhide = ['{hide}']\n"))?;
            let said = kit.sh(&id, "git show HEAD:src/ok.txt 2> /dev/null; test -e .git && echo git; find /.ringfence -path '*/objects/*'; echo done")?;
            ensure!(said == "done\n", "{hide}: {said}");
        }
        Ok(())
    })
}

#[test]
fn areas_hold_in_every_execution_and_fork() -> Result<()> {
    lasting("areas", |kit| {
        let before = fingerprint(&kit.fixture.folder)?;
        let id = made(
            kit,
            "[files]\nwrite = ['src/**', 'out/**']\nread_only = ['src/deep/**', 'src/gen/**']\nexport = ['**/*.c', 'out/**']\n",
        )?;
        let attack = "for line in 'echo x >> a.txt' 'chmod 600 a.txt' 'touch .' 'rm -rf src/deep' 'touch src/deep' \
            'mv src/deep src/d2' 'mkdir src/gen/x' 'rmdir src/gen' 'ln a.txt src/l' 'mkdir new' 'mv src s2' \
            'echo x > src/deep/x.c' 'rmdir out' 'ln -s / out'; do sh -c \"$line\" 2> /dev/null && echo WORKED $line; done; true";
        let hold = |id: &str| -> Result<()> {
            let said = kit.sh(id, attack)?;
            ensure!(said.is_empty(), "{said}");
            Ok(())
        };
        hold(&id)?;
        for path in ["src/deep/x.c", "a.txt"] {
            let words = ["sandbox", "fs", "write", &id, path];
            let output = kit.call(&words)?;
            ensure!(
                output.stderr.contains("the policy holds it read-only"),
                "{}",
                output.tail()
            );
        }
        expect(kit, &[&id], &[], &[])?;
        kit.sh(&id, "echo x >> src/main.c; echo x > src/n.txt; echo o > out/o; git add -A && git commit -qm inside; ln -s ../../../../etc src/etc; mkdir -p src/Gen; echo x > src/Gen/y.c")?;
        let changed = ["added out/o", "modified src/main.c"];
        let left = [
            "src/Gen/y.c read_only",
            "src/etc not_exported",
            "src/n.txt not_exported",
        ];
        expect(kit, &[&id], &changed, &left)?;
        kit.done(&["sandbox", "checkpoint", &id, "--name", "one"])?;
        kit.done(&["sandbox", "stop", &id])?;
        hold(&id)?;
        expect(kit, &[&id], &changed, &left)?;
        let fork = kit.done(&["sandbox", "fork", &id])?;
        hold(fork.trim())?;
        expect(kit, &[fork.trim()], &changed, &left)?;
        kit.done(&["sandbox", "rollback", &id, "one"])?;
        hold(&id)?;
        // The journal of each execution says what was held.
        let journals = fs::read_dir(kit.state_path("sandboxes").join(&id))?;
        let mut told = 0;
        for entry in journals {
            let text = fs::read_to_string(entry?.path()).unwrap_or_default();
            told += usize::from(text.contains(r#""read_only":[".","src/deep","src/gen"]"#));
        }
        ensure!(told >= 2, "{told} journals tell of it");
        ensure!(
            fingerprint(&kit.fixture.folder)? == before,
            "the folder changed"
        );
        Ok(())
    })
}

#[test]
fn mounts_are_there_in_every_execution_and_lead_nowhere_else() -> Result<()> {
    lasting("mounts", |kit| {
        let top = kit.fixture.folder.parent().context("a parent")?.to_owned();
        let script = "mkdir -p data cache victim; echo one > data/a; echo v > victim/v";
        kit.env.as_owner(kit.fixture, &top, &["sh", "-c", script])?;
        let text = format!(
            "[[files.mount]]\nhost = '{0}/data'\ninside = '/data'\n\
             [[files.mount]]\nhost = '{0}/cache'\ninside = '/home/agent/.cache/tool'\nwrite = true\n",
            path(&top)
        );
        let id = made(kit, &text)?;
        let said = kit.sh(&id, "cat /data/a; touch /data/b 2> /dev/null || echo refused; echo x > ~/.cache/tool/x && echo y > ~/.cache/own && ls -A ~/.cache")?;
        ensure!(said == "one\nrefused\nown\ntool\n", "{said}");
        ensure!(
            fs::read_to_string(top.join("cache/x"))? == "x\n",
            "not written"
        );
        expect(kit, &[&id], &[], &[])?;
        kit.done(&["sandbox", "stop", &id])?;
        let said = kit.sh(&id, "cat ~/.cache/tool/x ~/.cache/own")?;
        ensure!(said == "x\ny\n", "{said}");
        // The way to the place is the agent's: a link there must not lead the mount, or the host.
        let id = made(kit, &text)?;
        kit.done(&["sandbox", "checkpoint", &id, "--name", "good"])?;
        let victim = top.join("victim");
        let swap = format!(
            "mv ~/.cache ~/c2 && ln -s '{}' ~/.cache && ls ~/c2/tool",
            victim.display()
        );
        ensure!(kit.sh(&id, &swap)? == "x\n");
        kit.done(&["sandbox", "stop", &id])?;
        let words = ["sandbox", "exec", &id, "--", "true"];
        let place = "cannot show a mount of the policy at `/home/agent/.cache/tool`";
        kit.fails(4, place, &words)?;
        kit.fails(
            4,
            "such as a link, at or above `/home/agent/.cache/tool`; `ringfence sandbox rollback`",
            &words,
        )?;
        kit.done(&["sandbox", "rollback", &id, "good"])?;
        ensure!(kit.sh(&id, "cat ~/.cache/tool/x")? == "x\n");
        let left: Vec<_> = fs::read_dir(&victim)?.collect::<Result<_, _>>()?;
        ensure!(left.len() == 1, "{left:?}");
        Ok(())
    })
}

#[test]
fn a_policy_that_cannot_be_held_makes_no_sandbox() -> Result<()> {
    lasting("refused", |kit| {
        let folder = path(&kit.fixture.folder).to_owned();
        for (text, says) in [
            ("[files]\nwrite = ['missing.txt']\n", "does not exist"),
            ("[files]\nwrite = ['**/*.py']\n", "`export`"),
            (
                "[[files.mount]]\nhost = '/proc'\ninside = '/p'\n",
                "a face of the kernel",
            ),
            (
                "[[files.mount]]\nhost = '/usr/share'\ninside = '/workspace/x'\n",
                "something of its own",
            ),
            (
                &format!("[[files.mount]]\nhost = '{folder}'\ninside = '/x'\nwrite = true\n"),
                "worked on",
            ),
        ] {
            let file = policy(kit, text)?;
            kit.fails(
                2,
                says,
                &["sandbox", "create", "--repo", &folder, "--policy", &file],
            )?;
            ensure!(kit.states()?.is_empty(), "a sandbox was made: {text}");
        }
        Ok(())
    })
}
