//! What a hand can break: the rest stays, what is broken is said to be, and nothing is made worse.

use std::fs;
use std::os::unix::fs::FileExt as _;

use anyhow::{Context, Result, ensure};

use crate::scene::{Scene, call, in_modes_at_once};
use crate::support::{Fixture, Sandboxed, fingerprint};

#[test]
fn what_is_removed_by_hand_breaks_only_what_stands_on_it() -> Result<()> {
    in_modes_at_once("hand", |env, fixture| {
        let scene = Scene::set(env, fixture)?;
        for parent in ["layers", "bases"] {
            let id = scene.fresh()?;
            scene.checkpoint(&id, "c")?;
            scene.quiet("settle")?;
            let other = scene.ask(&["sandbox", "create", "--empty"])?;
            scene.exec(&other, "echo other > other")?;
            let status = scene.status()?;
            let rows = status["sandboxes"].as_array().context("no list")?;
            let row = rows.iter().find(|row| row["sandbox"] == *id);
            let row = row.context("no row")?;
            let field = if parent == "layers" { "head" } else { "base" };
            let name = row[field].as_str().context("no name")?;
            let gone = fixture.state.join(parent).join(name);
            let away = fixture.state.join("away");
            fs::rename(&gone, &away)?;
            ensure!(scene.state_of(&id)?.as_deref() == Some("broken"));
            for words in [
                &["sandbox", "exec", &id, "--replace", "--", "true"][..],
                &["sandbox", "checkpoint", &id, "--name", "d"],
                &["sandbox", "fork", &id],
                &["sandbox", "rollback", &id, "c"],
            ] {
                let output = scene.try_ask(words)?;
                ensure!(!output.status.success(), "{words:?} works");
                ensure!(output.stderr.contains(name), "{words:?}: {}", output.tail());
            }
            scene.ask(&["gc"])?;
            ensure!(scene.is_there(&id)?, "`gc` removed what is broken");
            scene.exec(&other, "test -f other")?;
            // Put back, all is well; and where it stays away, it can be removed.
            fs::rename(&away, &gone)?;
            ensure!(scene.digest(&id)? == scene.dirty, "something else is there");
            scene.ask(&["sandbox", "stop", &id])?;
            fs::rename(&gone, &away)?;
            scene.remove(&id)?;
            fs::rename(&away, &gone)?;
            scene.remove(&other)?;
            scene.swept()?;
        }
        scene.end()
    })
}

#[test]
fn a_store_that_cannot_be_read_is_left_as_it_is() -> Result<()> {
    in_modes_at_once("store", |env, fixture| {
        let id = call(env, fixture, &["sandbox", "create", "--empty"])?;
        let store = fixture.state.join("store.db");
        let whole = fs::read(&store)?;
        let log = fixture.state.join("store.db-wal");
        let whole_log = fs::read(&log).unwrap_or_default();
        // All of it into the main file, so that there is something to break.
        let garbage = |at: u64, length: usize| -> Result<()> {
            let file = fs::OpenOptions::new().write(true).open(&store)?;
            Ok(file.write_all_at(&vec![0xa5; length], at)?)
        };
        let cut = |length: u64| -> Result<()> {
            Ok(fs::OpenOptions::new()
                .write(true)
                .open(&store)?
                .set_len(length)?)
        };
        type Break<'a> = Box<dyn Fn() -> Result<()> + 'a>;
        let breaks: [(&str, Break<'_>); 4] = [
            ("header", Box::new(|| garbage(0, 100))),
            ("schema", Box::new(|| garbage(100, 3000))),
            ("cut in the header", Box::new(|| cut(50))),
            ("empty", Box::new(|| cut(0))),
        ];
        for (what, break_it) in breaks {
            // Without the log the main file is all there is; with it, the log may heal it.
            fs::write(&store, &whole)?;
            fs::write(&log, if what == "empty" { &whole_log[..] } else { b"" })?;
            break_it()?;
            refused(env, fixture, what)?;
        }
        fs::write(&store, &whole)?;
        fs::write(&log, &whole_log)?;
        let _ = fs::remove_file(fixture.state.join("store.db-shm"));
        let status = call(env, fixture, &["status", "--json"])?;
        ensure!(status.contains(&id), "{status}");
        Ok(())
    })
}

/// Every command says that it cannot, and changes nothing.
fn refused(env: &Sandboxed, fixture: &Fixture, what: &str) -> Result<()> {
    let contents = |name: &str| fs::read(fixture.state.join(name)).unwrap_or_default();
    let before = (contents("store.db"), contents("store.db-wal"));
    let directories = fingerprint(&fixture.state.join("sandboxes"))?;
    for words in [&["status"][..], &["sandbox", "create", "--empty"], &["gc"]] {
        let output = env.call(fixture).live(words)?.finish()?;
        ensure!(
            output.status.code() == Some(4) && output.stderr.contains("store.db"),
            "{what}: {words:?} {:?}: {}",
            output.status,
            output.tail()
        );
    }
    let after = (contents("store.db"), contents("store.db-wal"));
    ensure!(before == after, "{what}: the store was written");
    let now = fingerprint(&fixture.state.join("sandboxes"))?;
    ensure!(directories == now, "{what}: something was removed");
    Ok(())
}

/// SQL on the store, by its owner.
const SQL: &str = "import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.executescript(sys.argv[2])
print([r[0] for r in db.execute('PRAGMA user_version')][0])";

fn sql(env: &Sandboxed, fixture: &Fixture, text: &str) -> Result<String> {
    let store = fixture.state.join("store.db");
    let store = store.to_string_lossy();
    let words = ["/usr/bin/python3", "-c", SQL, &store, text];
    env.as_owner(fixture, &fixture.folder, &words)
}

#[test]
fn a_store_of_another_version_is_brought_up_or_left_alone() -> Result<()> {
    if !std::path::Path::new("/usr/bin/python3").exists() {
        println!("SKIPPED stores of other versions: needs python3");
        return Ok(());
    }
    in_modes_at_once("version", |env, fixture| {
        // An old one: what it had before there were sandboxes.
        let run = env.run_with(fixture, &[], "echo old > old.txt")?;
        let run = run["run"]
            .as_str()
            .or(run["id"].as_str())
            .context("no id")?;
        sql(
            env,
            fixture,
            "PRAGMA foreign_keys = OFF; DROP TABLE calls; DROP TABLE checkpoints; DROP TABLE evictions;
             DROP TABLE sandboxes; DROP TABLE layers; DROP TABLE bases; DROP TABLE mirrors; DROP TABLE programs;
             DROP TABLE verdicts; DROP TABLE pull_requests; DROP TABLE environments;
             DROP TABLE image_names; DROP TABLE images; DROP TABLE image_layers;
             DROP TABLE campaign_tasks; DROP TABLE campaigns; DROP INDEX runs_by_campaign;
             DROP TRIGGER run_began; DROP TRIGGER run_step; DROP TRIGGER run_ended;
             DROP TRIGGER run_removed; DROP TABLE events;
             PRAGMA user_version = 1",
        )?;
        let list = call(env, fixture, &["list"])?;
        ensure!(list.contains(run), "the old run is lost: {list}");
        let id = call(env, fixture, &["sandbox", "create", "--empty"])?;
        let version: i64 = sql(env, fixture, "SELECT 1")?.trim().parse()?;
        ensure!(version > 1, "it is still of version {version}");
        // A new one: it is not ours to write.
        sql(env, fixture, "PRAGMA user_version = 99")?;
        refused(env, fixture, "newer")?;
        let output = env.call(fixture).live(&["status"])?.finish()?;
        ensure!(output.stderr.contains("newer"), "{}", output.tail());
        sql(env, fixture, &format!("PRAGMA user_version = {version}"))?;
        let status = call(env, fixture, &["status", "--json"])?;
        ensure!(status.contains(&id), "{status}");
        Ok(())
    })
}
