//! Pulling and unpacking an image of 200 MB in 6 layers, beside `docker pull` from the same registry.
//!
//! A daemon of Docker needs root: `--as-root`. Where it does not start, it is said why.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ringfence_engine::home::Home;

use crate::made::{self, Made, OCI_MANIFEST, noise, tar};
use crate::place::{Place, outside};
use crate::registry::Registry;
use crate::sample::{Contender, in_turn};
use crate::table::{Against, Bound, Table};

const LAYERS: usize = 6;
const FILES: usize = 400;
const ROUNDS: usize = 5;
/// What the issue allows.
const BOUND: Bound = Bound::times(1.0);

pub fn measure(place: &Place, table: &mut Table) -> Result<()> {
    let directory = place.beside("registry")?;
    let Some(registry) = Registry::start(&directory, "")? else {
        table.note("not measured: there is no docker-registry");
        return Ok(());
    };
    let image = image();
    let packed: usize = image.blobs.iter().map(Vec::len).sum();
    let plain: usize = image.tars.iter().map(Vec::len).sum();
    registry.push(&image, "team/large", "1", OCI_MANIFEST)?;
    let name = registry.name("team/large:1");
    let home = Home::open(Some(place.root().join("home-images")))?;
    let mut pull = place.program_at(&home, &["image", "pull", &name]);
    let forget = place.program_at(&home, &["image", "rm", &name]);
    let docker = Docker::start(&place.beside("docker")?);
    let mut contenders = vec![
        Contender::new("ringfence image pull", || outside(&mut pull)).after(|| {
            // The first time there is nothing to remove.
            let mut again = Command::new(forget.get_program());
            again.args(forget.get_args());
            for (key, value) in forget.get_envs() {
                match value {
                    Some(value) => again.env(key, value),
                    None => again.env_remove(key),
                };
            }
            again.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
            Ok(())
        }),
    ];
    match &docker {
        Ok(docker) => contenders.push(
            Contender::new("docker pull", || {
                outside(&mut docker.command(&["pull", "-q", &name]))
            })
            .after(|| {
                let mut forget = docker.command(&["rmi", "-f", &name]);
                forget
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .status()?;
                Ok(())
            }),
        ),
        Err(error) => table.note(&format!("docker is not measured: {error:#}")),
    }
    let times = in_turn(ROUNDS, &mut contenders)?;
    match times.get(1) {
        Some(docker) => {
            table.times("docker pull", docker);
            let against = Against {
                name: "docker pull",
                samples: docker,
                bound: BOUND,
            };
            table.held("ringfence image pull", &times[0], against);
        }
        None => table.times("ringfence image pull", &times[0]),
    }
    table.note(&format!(
        "{LAYERS} layers of {FILES} files, {} MB packed, {} MB unpacked, synced",
        packed / 1_000_000,
        plain / 1_000_000
    ));
    Ok(())
}

/// Two thirds of what is in a layer packs well, as programs and texts do.
fn image() -> Made {
    let tars: Vec<Vec<u8>> = (0..LAYERS).map(layer).collect();
    made::image(&tars)
}

fn layer(number: usize) -> Vec<u8> {
    let names: Vec<String> = (0..FILES)
        .map(|file| format!("usr/lib/layer{number}/part{}/file{file}", file / 20))
        .collect();
    let contents: Vec<Vec<u8>> = (0..FILES).map(|file| content(number, file)).collect();
    let entries: Vec<(&str, &[u8])> = names
        .iter()
        .zip(&contents)
        .map(|(name, content)| (name.as_str(), content.as_slice()))
        .collect();
    tar(&entries)
}

/// 84 kB.
fn content(layer: usize, file: usize) -> Vec<u8> {
    let seed = (layer * FILES + file) as u64 * 2_654_435_761 + 1;
    let mut bytes = noise(28_000, seed);
    let words: Vec<String> = bytes
        .chunks(2)
        .map(|pair| format!("{:03}", u16::from(pair[0]) % 200))
        .collect();
    bytes.extend_from_slice(words.join(" ").as_bytes());
    bytes
}

/// A daemon of the bench's own.
pub struct Docker {
    daemon: Child,
    socket: String,
}

impl Docker {
    pub fn start(directory: &Path) -> Result<Self> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "its daemon needs root: `--as-root`"
        );
        let socket = format!("unix://{}", directory.join("socket").display());
        let daemon = Command::new("dockerd")
            .arg("--data-root")
            .arg(directory.join("data"))
            .arg("--exec-root")
            .arg(directory.join("exec"))
            .args(["-H", &socket, "-p"])
            .arg(directory.join("pid"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let mut docker = Self { daemon, socket };
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let mut info = docker.command(&["info"]);
            let asked = info.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
            if asked.success() {
                return Ok(docker);
            }
            ensure!(docker.daemon.try_wait()?.is_none(), "its daemon ended");
            ensure!(Instant::now() < deadline, "its daemon does not answer");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// As `DOCKER_HOST` has it.
    pub fn socket(&self) -> &str {
        &self.socket
    }

    pub fn command(&self, words: &[&str]) -> Command {
        // Beside its daemon there may be others on the path.
        let mut command = Command::new("/usr/bin/docker");
        command.args(["-H", &self.socket]).args(words);
        command
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        // Asked to end, it ends what it started.
        if let Some(pid) = rustix::process::Pid::from_raw(self.daemon.id().cast_signed()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.daemon.wait();
    }
}
