//! Runs and sandboxes that have an image as `/`: all of it is there, nothing of the host is, and who
//! works there is the agent.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::image::files::saved;
use crate::image::made::{self, Made, OCI_MANIFEST, digest, tar};
use crate::image::registry::Registry;
use crate::image::{call, says, shelf, text};
use crate::support::{Fixture, Sandboxed, expect, in_each_mode_in_turn, said};

/// Programs that the tests use inside, all of them one file.
const APPLETS: [&str; 21] = [
    "sh", "cat", "ls", "id", "env", "grep", "echo", "test", "mkdir", "cp", "chown", "chmod",
    "stat", "mknod", "mkfifo", "ln", "rm", "readlink", "sleep", "head", "find",
];

/// Says who it is, whatever its file is marked with.
const SELF: &str = "#include <stdio.h>\n#include <unistd.h>\n\
    int main(void) { printf(\"%d %d\\n\", (int)geteuid(), (int)getegid()); return 0; }\n";

/// A static program, compiled here; `None` where that cannot be done.
fn own_program() -> Result<Option<Vec<u8>>> {
    let place = tempfile::tempdir()?;
    let (source, program) = (place.path().join("self.c"), place.path().join("self"));
    std::fs::write(&source, SELF)?;
    let built = Command::new("cc")
        .arg("-static")
        .arg("-o")
        .args([&program, &source])
        .output();
    match built {
        Ok(output) if output.status.success() => Ok(Some(std::fs::read(&program)?)),
        _ => {
            println!("SKIPPED images with a program of our own: no static C library");
            Ok(None)
        }
    }
}

/// Whether a 64-bit program asks for no interpreter, which an image would have to have.
fn is_static(program: &[u8]) -> bool {
    const INTERPRETER: u8 = 3;
    let number = |at: usize, bytes: usize| -> Option<usize> {
        let part = program.get(at..at + bytes)?;
        Some(
            part.iter()
                .rev()
                .fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
        )
    };
    let headers = || Some((number(32, 8)?, number(54, 2)?, number(56, 2)?));
    let Some((first, size, count)) = headers() else {
        return false;
    };
    (0..count).all(|index| number(first + index * size, 1) != Some(usize::from(INTERPRETER)))
}

/// An image with a shell, in two layers; `None` where its parts are not on this machine.
pub fn busybox() -> Result<Option<Made>> {
    let program = ["/bin/busybox", "/usr/bin/busybox"]
        .iter()
        .find_map(|path| std::fs::read(path).ok());
    let Some(program) = program.filter(|bytes| is_static(bytes)) else {
        println!("SKIPPED runs on images: no static busybox");
        return Ok(None);
    };
    let Some(own) = own_program()? else {
        return Ok(None);
    };
    let links: Vec<String> = APPLETS.iter().map(|name| format!("bin/{name}")).collect();
    let mut entries: Vec<(&str, &[u8])> = vec![
        ("bin/", b""),
        ("bin/busybox", &program),
        ("bin/self", &own),
        ("etc/", b""),
        (
            "etc/passwd",
            b"root:x:0:0::/root:/bin/sh\ndaemon:x:5:6::/:/bin/sh\n",
        ),
        ("etc/group", b"root:x:0:\n"),
        ("etc/mark", b"below\n"),
        ("etc/gone", b"below\n"),
        // What the host has at these places must not be seen through them.
        ("tmp", b"-> /etc"),
        ("usr/", b""),
        ("usr/own", b"of the image\n"),
    ];
    entries.extend(links.iter().map(|link| (link.as_str(), &b"-> busybox"[..])));
    let above = tar(&[
        ("etc/mark", b"above\n"),
        ("etc/.wh.gone", b""),
        ("srv/", b""),
    ]);
    let mut image = made::image(&[tar(&entries), above]);
    let mut config: Value = serde_json::from_slice(&image.config)?;
    config["config"] = json!({
        "User": "0:0",
        "WorkingDir": "/srv",
        "Cmd": ["/bin/cat", "/etc/mark"],
        "Entrypoint": ["/bin/echo"],
        "Env": ["PATH=/bin", "OF_IMAGE=yes", "HOME=/evil", "USER=evil", "RINGFENCE_HOME=/evil"],
    });
    image.config = config.to_string().into_bytes();
    image.manifest = made::manifest(&image.config, &image.blobs)
        .to_string()
        .into_bytes();
    Ok(Some(image))
}

/// Imports it as `team/saved:2`; gives its digest.
pub fn import(env: &Sandboxed, fixture: &Fixture, image: &Made) -> Result<String> {
    let file = env.put(fixture, "../saved.tar", saved(image))?;
    says(&call(env, fixture), &["import", text(&file)], 0)?;
    Ok(digest(&image.config))
}

const NAME: &str = "team/saved:2";

#[test]
fn an_image_is_all_that_a_run_has() -> Result<()> {
    let Some(image) = busybox()? else {
        return Ok(());
    };
    in_each_mode_in_turn("image-run", |env, fixture| {
        let id = import(env, fixture, &image)?;
        let on_image = ["--image", NAME];
        let run = |shell: &str| env.run_with(fixture, &on_image, shell);
        let shell = "cat /etc/mark /usr/own; readlink /proc/self/exe; test -e /etc/gone || echo gone; \
                     id -u; id -g; self; pwd; echo $OF_IMAGE $HOME $USER $RINGFENCE_HOME; cat a.txt";
        let result = run(shell)?;
        expect(&result, "status", "done")?;
        let expected = "above\nof the image\n/bin/busybox\ngone\n1000\n1000\n1000 1000\n/workspace\n\
                        yes /home/agent agent\none\ntwo\nthree\n";
        ensure!(said(&result) == expected, "{}", said(&result));

        // Who works there can do nothing that the agent on the host's system cannot.
        let result = run("grep -E '^(Cap...|NoNewPrivs|Groups):' /proc/self/status")?;
        let lines: Vec<&str> = said(&result).lines().collect();
        ensure!(lines.len() == 7, "{lines:?}");
        for line in lines {
            let (name, value) = line.split_once(':').context("a line")?;
            let expected = match name {
                "NoNewPrivs" => "1",
                "Groups" => "",
                _ => "0000000000000000",
            };
            ensure!(value.trim() == expected, "{line}");
        }

        // Of the host nothing is there, whatever the image has in its place.
        let (secret, home) = (env.secret.display(), env.home.display());
        let host = format!(
            "ls {secret} {home} /usr/bin /root /var/lib /opt /lib /sys /boot; ls /tmp; ls /usr; \
             ls / | grep -v -x -E 'bin|dev|etc|home|proc|run|srv|tmp|usr|var|workspace|[.]ringfence'; true"
        );
        let result = run(&host)?;
        ensure!(said(&result) == "own\n", "{}", said(&result));

        // It can be written nowhere, also not by its owner.
        let result = run(
            "for f in /etc/mark /bin/busybox /new /srv/new /usr/own; do \
                          (echo x > $f) 2>/dev/null && echo wrote $f; done; echo mine > a.txt",
        )?;
        ensure!(said(&result).is_empty(), "{}", said(&result));
        expect(&result, "changed_files", vec!["a.txt"])?;
        says(&call(env, fixture), &["verify", NAME], 0)?;
        is_named(env, fixture, &result, &id)
    })
}

/// Result, manifest and journal of a run name the digest, and `show` prints it.
fn is_named(env: &Sandboxed, fixture: &Fixture, result: &Value, id: &str) -> Result<()> {
    ensure!(
        result["environment"]["image"] == id,
        "{}",
        result["environment"]
    );
    let run = result["run"].as_str().context("an id")?;
    let bundle = fixture.state.join("bundles").join(run);
    let manifest: Value = serde_json::from_slice(&std::fs::read(bundle.join("manifest.json"))?)?;
    ensure!(manifest["environment"]["image"] == id, "{manifest}");
    let journal = env.look(fixture, &["audit", run, "--json"])?;
    let mut enforced = journal.lines().filter(|line| line.contains("\"enforced\""));
    ensure!(
        enforced.next().is_some_and(|line| line.contains(id)),
        "the journal does not say it"
    );
    let shown = env.look(fixture, &["show", run])?;
    ensure!(shown.contains(id), "{shown}");
    env.look(fixture, &["verify", run])?;
    Ok(())
}

#[test]
fn a_run_pulls_what_is_not_here_and_needs_the_registry_once() -> Result<()> {
    let Some(image) = busybox()? else {
        return Ok(());
    };
    let place = tempfile::tempdir()?;
    let Some(registry) = Registry::start(place.path(), "")? else {
        return Ok(());
    };
    registry.push(&image, "team/box", "1", OCI_MANIFEST)?;
    let (name, none) = (registry.name("team/box:1"), registry.name("team/box:none"));
    let pinned = registry.name(&format!("team/box@{}", digest(&image.manifest)));
    let storage = place.path();
    in_each_mode_in_turn("image-pulled", |env, fixture| {
        let call = call(env, fixture);
        let output = call.finish(&["run", "--image", &none, "--", "true"])?;
        output.exits(2)?;
        ensure!(output.stderr.contains("team/box"), "{}", output.tail());
        let left = shelf(fixture)?;
        ensure!(left.is_empty(), "{left:?}");
        let look = "cat /etc/mark; self";
        let result = call.run(&["--image", &name], look)?;
        expect(&result, "status", "done")?;
        ensure!(said(&result) == "above\n1000 1000\n", "{result}");
        is_named(env, fixture, &result, &digest(&image.manifest))?;
        // What is here is not asked for again: there is nobody to ask.
        let hidden = storage.join("away");
        std::fs::rename(storage.join("storage"), &hidden)?;
        let again = [name.as_str(), &pinned].map(|name| call.run(&["--image", name], look));
        std::fs::rename(&hidden, storage.join("storage"))?;
        for result in again {
            let result = result?;
            ensure!(said(&result) == "above\n1000 1000\n", "{result}");
        }
        Ok(())
    })
}

#[test]
fn an_image_stays_while_a_sandbox_or_an_environment_stands_on_it() -> Result<()> {
    let Some(image) = busybox()? else {
        return Ok(());
    };
    in_each_mode_in_turn("image-used", |env, fixture| {
        let id = import(env, fixture, &image)?;
        let call = call(env, fixture);
        let folder = text(&fixture.folder).to_owned();
        let made = call.finish(&["sandbox", "create", "--image", NAME, "--repo", &folder])?;
        made.exits(0)?;
        let sandbox = made.stdout.trim().to_owned();
        let exec = |id: &str, shell: &str| -> Result<String> {
            let output = call.finish(&["sandbox", "exec", id, "--", "sh", "-c", shell])?;
            output.exits(0)?;
            Ok(output.stdout)
        };
        let look = "cat /etc/mark; self; pwd; echo $OF_IMAGE; test -e /usr/bin || echo none";
        let expected = "above\n1000 1000\n/workspace\nyes\nnone\n";
        let seen = exec(&sandbox, look)?;
        ensure!(seen == expected, "{seen}");
        // Also when it is started again, and in its forks.
        call.finish(&["sandbox", "stop", &sandbox])?.exits(0)?;
        let seen = exec(&sandbox, look)?;
        ensure!(seen == expected, "{seen}");
        let fork = call.finish(&["sandbox", "fork", &sandbox])?;
        fork.exits(0)?;
        let fork = fork.stdout.trim().to_owned();
        let seen = exec(&fork, look)?;
        ensure!(seen == expected, "{seen}");
        let refused = |by: &str| -> Result<()> {
            for name in [NAME, &id] {
                let output = says(&call, &["rm", name], 2)?;
                ensure!(output.stderr.contains(by), "no `{by}`: {}", output.stderr);
            }
            Ok(())
        };
        refused(&format!("sandbox {sandbox}"))?;
        call.finish(&["sandbox", "rm", &sandbox])?.exits(0)?;
        refused(&format!("sandbox {fork}"))?;
        call.finish(&["sandbox", "rm", &fork])?.exits(0)?;

        let setup = format!("[environment]\nimage = '{NAME}'\nsetup = 'echo made > made'\n");
        env.put(fixture, "ringfence.toml", setup)?;
        let result = call.run(&[], "cat made /etc/mark")?;
        ensure!(said(&result) == "made\nabove\n", "{result}");
        let key = result["environment"]["setup_key"]
            .as_str()
            .context("a key")?;
        refused(&format!("environment {}", &key[..12]))?;
        // Everything that takes room is listed, each byte once.
        let used = env.look(fixture, &["du", "--json"])?;
        let used: Vec<Value> = serde_json::from_str(&used)?;
        let row = |what: &str, id: &str| {
            let is_it = |row: &&Value| row["what"] == what && row["id"] == id;
            used.iter()
                .find(is_it)
                .with_context(|| format!("no {what}: {used:?}"))
        };
        let bytes = row("image", &id)?["bytes"].as_u64().unwrap_or(0);
        ensure!(bytes > 1 << 20, "{used:?}");
        ensure!(
            row("environment", key)?["bytes"].as_u64() > Some(0),
            "{used:?}"
        );
        env.look(fixture, &["environment", "rm", key])?;
        says(&call, &["rm", NAME], 0)?;
        let left = shelf(fixture)?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
}

#[test]
fn as_many_layers_as_are_taken_can_be_run_on() -> Result<()> {
    let Some(image) = busybox()? else {
        return Ok(());
    };
    const MOST: usize = 256;
    let layers = |count: usize| -> Vec<Vec<u8>> {
        let more = (image.tars.len()..count).map(|n| tar(&[("number", n.to_string().as_bytes())]));
        image.tars.iter().cloned().chain(more).collect()
    };
    let (deep, deeper) = (made::image(&layers(MOST)), made::image(&layers(MOST + 1)));
    in_each_mode_in_turn("image-deep", |env, fixture| {
        import(env, fixture, &deep)?;
        let setup = format!("[environment]\nimage = '{NAME}'\nsetup = 'echo made > made'\n");
        env.put(fixture, "ringfence.toml", setup)?;
        let result = env.run_with(fixture, &[], "cat made /etc/mark /number")?;
        let expected = format!("made\nabove\n{}", MOST - 1);
        ensure!(said(&result) == expected, "{result}");
        let file = env.put(fixture, "../deeper.tar", saved(&deeper))?;
        let output = says(&call(env, fixture), &["import", text(&file)], 2)?;
        let message = format!("it has more than {MOST} layers");
        ensure!(output.stderr.contains(&message), "{}", output.stderr);
        Ok(())
    })
}
