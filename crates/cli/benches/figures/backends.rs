//! A sandbox in a container beside `docker run` of the same image, and a command in one that runs beside
//! `docker exec`. A daemon of Docker needs root: `--as-root`.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use ringfence_engine::home::Home;

use crate::images::Docker;
use crate::place::{Place, outside};
use crate::sample::{Contender, in_turn};
use crate::table::{Against, Bound, Table};

const ROUNDS: usize = 15;
const IMAGE: &str = "figures-busybox";
/// What the issue allows: create, run and remove.
const WHOLE: Bound = Bound::times(1.15);
/// The same: a command in a sandbox that runs is five times faster.
const EXEC: Bound = Bound::times(0.2);

pub fn measure(place: &Place, table: &mut Table) -> Result<()> {
    let docker = match Docker::start(&place.beside("docker-backend")?) {
        Ok(docker) => docker,
        Err(error) => {
            table.note(&format!("not measured: {error:#}"));
            return Ok(());
        }
    };
    import(place, &docker)?;
    let home = Home::open(Some(place.root().join("home-backends")))?;
    let program = |words: &[&str]| {
        let mut command = place.program_at(&home, words);
        command.env("DOCKER_HOST", docker.socket());
        command.current_dir(place.folder());
        command
    };
    let mut ours = program(&[
        "run",
        "--backend",
        "docker",
        "--image",
        IMAGE,
        "--",
        "/bin/true",
    ]);
    let mut contenders = [
        Contender::new("ringfence run --backend docker", || outside(&mut ours)),
        Contender::new("docker run", || {
            let words = ["run", "--rm", "--network", "none", IMAGE, "/bin/true"];
            outside(&mut docker.command(&words))
        }),
    ];
    let times = in_turn(ROUNDS, &mut contenders)?;
    table.times("docker run --rm", &times[1]);
    let against = Against {
        name: "docker run --rm",
        samples: &times[1],
        bound: WHOLE,
    };
    table.held("ringfence run --backend docker", &times[0], against);
    let words = [
        "sandbox",
        "create",
        "--empty",
        "--backend",
        "docker",
        "--image",
        IMAGE,
    ];
    let made = program(&words).output()?;
    ensure!(made.status.success(), "{made:?}");
    let id = String::from_utf8(made.stdout)?.trim().to_owned();
    let mut exec = program(&["sandbox", "exec", &id, "--", "/bin/true"]);
    outside(&mut exec)?;
    let words = [
        "run",
        "--detach",
        "--network",
        "none",
        IMAGE,
        "/bin/sleep",
        "600",
    ];
    let running = docker.command(&words).stderr(Stdio::inherit()).output()?;
    ensure!(running.status.success(), "{running:?}");
    let running = String::from_utf8(running.stdout)?.trim().to_owned();
    let mut contenders = [
        Contender::new("ringfence sandbox exec", || outside(&mut exec)),
        Contender::new("docker exec", || {
            outside(&mut docker.command(&["exec", &running, "/bin/true"]))
        }),
    ];
    let times = in_turn(ROUNDS, &mut contenders)?;
    table.times("docker exec", &times[1]);
    let against = Against {
        name: "docker exec",
        samples: &times[1],
        bound: EXEC,
    };
    table.held("ringfence sandbox exec, at docker", &times[0], against);
    outside(&mut program(&["sandbox", "rm", &id]))
}

/// An image of one static program.
fn import(place: &Place, docker: &Docker) -> Result<()> {
    let root = place.beside("busybox-root")?.join("bin");
    std::fs::create_dir_all(&root)?;
    std::fs::copy("/bin/busybox", root.join("busybox")).context("there is no busybox")?;
    for name in ["true", "sleep", "sh"] {
        std::os::unix::fs::symlink("busybox", root.join(name))?;
    }
    let top = root.parent().context("it has a directory")?;
    let mut tar = Command::new("tar")
        .arg("-C")
        .arg(top)
        .args(["-c", "."])
        .stdout(Stdio::piped())
        .spawn()?;
    let archive = tar.stdout.take().context("no pipe")?;
    let imported = docker
        .command(&["import", "-", IMAGE])
        .stdin(archive)
        .output()?;
    ensure!(
        tar.wait()?.success() && imported.status.success(),
        "{imported:?}"
    );
    Ok(())
}
