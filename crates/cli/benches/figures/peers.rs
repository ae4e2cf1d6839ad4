//! Other programs that run a command in a sandbox, each called as its own manual says.

use std::path::Path;
use std::process::Command;

use crate::place::outside;
use crate::sample::Contender;

/// The peer that bounds are given in.
pub const BWRAP: &str = "bwrap";
/// The peer that is not to be slower than us with a copy-on-write view.
pub const SANDLOCK: &str = "sandlock";

/// The namespaces of a sandbox and an empty view with the system in it.
const BWRAP_WORDS: &str = "--unshare-all --ro-bind /usr /usr --symlink usr/bin /bin \
    --symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev --tmpfs /tmp /bin/true";

/// A fresh sandbox by `bwrap`.
pub fn bwrap() -> Command {
    let mut command = Command::new(BWRAP);
    command.args(BWRAP_WORDS.split_whitespace());
    command
}

/// The peers that run here, and for each other one why not. `storage` is for their layers.
pub fn all(folder: &Path, storage: &Path) -> (Vec<Contender<'static>>, Vec<String>) {
    let mut found = Vec::new();
    let mut missing = Vec::new();
    for (name, mut command) in commands(folder, storage) {
        command.current_dir(folder);
        let why = match command.output() {
            Ok(output) if output.status.success() => {
                found.push(Contender::new(name, move || outside(&mut command)));
                continue;
            }
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                let first = said.lines().next().unwrap_or_default().to_owned();
                format!("does not run here ({first})")
            }
            Err(_) => "not installed".to_owned(),
        };
        missing.push(format!("{name}: {why}"));
    }
    (found, missing)
}

fn commands(folder: &Path, storage: &Path) -> Vec<(&'static str, Command)> {
    let mut sandlock = Command::new(SANDLOCK);
    sandlock.arg("run");
    for path in ["/usr", "/bin", "/lib", "/lib64", "/etc", "/dev"] {
        sandlock.args(["-r", path]);
    }
    sandlock.arg("--workdir").arg(folder).arg("-w").arg(folder);
    sandlock.arg("--fs-storage").arg(storage);
    sandlock.args(["--on-exit", "abort", "--", "/bin/true"]);
    let plain = |program: &str, words: &[&str]| {
        let mut command = Command::new(program);
        command.args(words);
        command
    };
    vec![
        (BWRAP, bwrap()),
        (SANDLOCK, sandlock),
        ("landstrip", plain("landstrip", &["--", "/bin/true"])),
        (
            "codex",
            plain("codex", &["sandbox", "-P", ":workspace", "--", "/bin/true"]),
        ),
        ("srt", plain("srt", &["/bin/true"])),
        ("docker", docker()),
    ]
}

/// `docker run` of any image that is there; it fails where no daemon answers.
pub fn docker() -> Command {
    let image = Command::new("docker")
        .args(["images", "--quiet"])
        .output()
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .and_then(|text| text.lines().next().map(str::to_owned))
        .unwrap_or_else(|| "scratch".to_owned());
    let mut command = Command::new("docker");
    command.args([
        "run",
        "--rm",
        "--pull",
        "never",
        "--network",
        "none",
        &image,
        "/bin/true",
    ]);
    command
}
