//! What an agent, an image, a name or a policy could do to a sandbox at an engine.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use crate::backends::{CREATE, run_there, same, until, with_an_engine};
use crate::support::{Mode, Output};

/// What an agent could look into for a moment has nothing of ours: no pipe of records, no socket.
#[test]
fn a_leader_that_can_be_looked_into_has_only_its_streams() {
    const SCAN: &str = "import os, time\n\
        seen, end = set(), time.time() + 6\n\
        while time.time() < end:\n\
        \x20for pid in filter(str.isdigit, os.listdir('/proc')):\n\
        \x20 try:\n\
        \x20  before, open_ = os.readlink(f'/proc/{pid}/exe'), os.listdir(f'/proc/{pid}/fd')\n\
        \x20  if before == os.readlink(f'/proc/{pid}/exe') == '/.ringfence/guest':\n\
        \x20   seen.update(open_); seen.add('leader')\n\
        \x20 except OSError: pass\n\
        open('/workspace/seen', 'w').write(' '.join(sorted(seen)))\n";
    with_an_engine("looked", |scene| {
        let id = scene.done(&CREATE)?;
        let id = id.stdout.trim();
        let shell = |line: &str| scene.done(&["sandbox", "exec", id, "--", "sh", "-c", line]);
        shell(&format!(
            "cat > scan.py <<'END'\n{SCAN}END\npython3 scan.py > /dev/null 2>&1 &"
        ))?;
        until("it has looked", || {
            let output = scene.call(&["sandbox", "exec", id, "--", "sh", "-c", "exit 7"])?;
            ensure!(
                matches!(output.status.code(), Some(1 | 7)),
                "{}",
                output.tail()
            );
            Ok(shell("cat seen 2>/dev/null || :")?
                .stdout
                .contains("leader"))
        })?;
        let seen = shell("cat seen")?.stdout;
        for word in seen.split_whitespace() {
            ensure!(
                ["0", "1", "2", "leader"].contains(&word),
                "it was seen: {seen}"
            );
        }
        scene.done(&["sandbox", "rm", id])?;
        scene.nothing_left()
    });
}

/// A home that is reached by a link, with a directory of the host that the agent may write.
#[test]
fn what_is_mounted_is_never_removed() {
    with_an_engine("linked", |scene| {
        let precious = scene
            .env
            .path(&format!("precious-{:?}", scene.fixture.mode));
        let real = scene.env.path(&format!("real-{:?}", scene.fixture.mode));
        let link = scene.env.path(&format!("link-{:?}", scene.fixture.mode));
        fs::create_dir(&precious)?;
        fs::create_dir(&real)?;
        std::os::unix::fs::symlink(&real, &link)?;
        fs::write(precious.join("kept"), "kept")?;
        for path in [&precious, &real] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
            fs::set_permissions(path, mode)?;
            let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(&scene.fixture.folder)?);
            std::os::unix::fs::lchown(path, Some(owner), Some(owner))?;
            std::os::unix::fs::lchown(&link, Some(owner), Some(owner))?;
        }
        let policy =
            format!("[[files.mount]]\nhost = {precious:?}\ninside = '/data'\nwrite = true\n");
        let policy = scene.env.put(scene.fixture, "policy.toml", policy)?;
        let (policy, link) = (policy.to_string_lossy(), link.to_string_lossy());
        let address = scene.engine.address();
        let at_link = |words: &[&str]| -> Result<Output> {
            let call = scene
                .env
                .call(scene.fixture)
                .variable("DOCKER_HOST", &address);
            let output = call.variable("RINGFENCE_HOME", &link).finish(words)?;
            ensure!(output.status.success(), "{words:?}: {}", output.tail());
            Ok(output)
        };
        let words = [
            "run",
            "--backend",
            "docker",
            "--policy",
            &policy,
            "--",
            "sh",
            "-c",
            "cat /data/kept",
        ];
        same(&at_link(&words)?.stdout, "kept")?;
        let id = at_link(&[&CREATE[..], &["--policy", &policy]].concat())?;
        let id = id.stdout.trim();
        at_link(&["sandbox", "exec", id, "--", "sh", "-c", "echo mine > a"])?;
        at_link(&["sandbox", "stop", id])?;
        at_link(&["gc"])?;
        same(
            &at_link(&["sandbox", "exec", id, "--", "cat", "a"])?.stdout,
            "mine\n",
        )?;
        at_link(&["sandbox", "rm", id])?;
        at_link(&["gc"])?;
        ensure!(precious.join("kept").exists(), "it was removed");
        let table = fs::read_to_string("/proc/self/mountinfo")?;
        ensure!(!table.contains(&*real.to_string_lossy()), "mounts are left");
        Ok(())
    });
}

/// What an image, a name or a policy could lead astray is refused.
#[test]
fn what_could_be_led_elsewhere_is_refused() {
    with_an_engine("astray", |scene| {
        let root = scene.env.path(&format!("image-{:?}", scene.fixture.mode));
        fs::create_dir(&root)?;
        std::os::unix::fs::symlink("/home/agent", root.join(".ringfence"))?;
        scene.engine.import(&root, "with-a-link:1")?;
        let words = [
            "run",
            "--backend",
            "docker",
            "--image",
            "with-a-link:1",
            "--",
            "/x",
        ];
        scene.refused(&words, 3, &["`/.ringfence`"])?;
        let policy = "[[files.mount]]\nhost = '/usr/share'\ninside = '/home/agent/x'\n";
        scene.env.put(scene.fixture, "policy.toml", policy)?;
        let words = [&CREATE[..], &["--policy", "policy.toml"]].concat();
        let id = scene.done(&words)?.stdout;
        let exec = ["sandbox", "exec", id.trim(), "--", "true"];
        scene.refused(&exec, 3, &["in the home"])?;
        scene.done(&["sandbox", "rm", id.trim()])?;
        let comma = scene.fixture.folder.join("w,ro");
        fs::create_dir(&comma)?;
        let comma = comma.to_string_lossy();
        let words = ["run", "--backend", "docker", "--repo", &comma, "--", "true"];
        match scene.fixture.mode {
            Mode::Root => drop(scene.done(&words)?),
            Mode::Rootless => scene.refused(&words, 3, &["a comma"])?,
        }
        scene.nothing_left()
    });
}

/// HOSTILE: the guest has no more rights than the agent there. Who hides from it writes nothing.
#[test]
fn what_cannot_be_looked_into_writes_nothing() {
    with_an_engine("hidden", |scene| {
        let shell = "python3 -c \"import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); open('x', 'w')\"; echo y > y";
        let output = scene.done(&run_there(shell))?;
        let result = output.json.as_ref().context("no result")?;
        ensure!(
            result["changed_files"] == serde_json::json!(["y"]),
            "{result}"
        );
        ensure!(
            output.stderr.contains("Operation not permitted"),
            "{}",
            output.tail()
        );
        Ok(())
    });
}

/// HOSTILE: for a tool nobody else may answer or write: not before its exec either.
#[test]
fn a_tool_is_never_looked_into() {
    const WATCH: &str = "import os\n\
        seen = set()\n\
        print('READY', flush=True)\n\
        while not os.path.exists('stop'):\n\
        \x20for p in os.listdir('/proc'):\n\
        \x20 try: exe = os.readlink('/proc/%s/exe' % p)\n\
        \x20 except OSError: continue\n\
        \x20 if 'ringfence' in exe: seen.add(exe)\n\
        print('SEEN', sorted(seen))";
    with_an_engine("watched", |scene| {
        let id = scene.done(&["sandbox", "create", "--empty", "--backend", "docker"])?;
        let id = id.stdout.trim();
        let address = scene.engine.address();
        let call = || {
            scene
                .env
                .call(scene.fixture)
                .variable("DOCKER_HOST", &address)
        };
        let mut live = call().live(&[
            "sandbox", "exec", "--shared", id, "--", "python3", "-c", WATCH,
        ])?;
        live.until("READY")?;
        for number in 0..40 {
            let name = format!("f{number}");
            let output = call()
                .input(b"x")
                .finish(&["sandbox", "fs", "write", id, &name])?;
            ensure!(output.status.success(), "{}", output.tail());
        }
        call()
            .input(b"")
            .finish(&["sandbox", "fs", "write", id, "stop"])?;
        same(&live.finish()?.stdout, "READY\nSEEN []\n")?;
        scene.done(&["sandbox", "rm", id])?;
        Ok(())
    });
}
