//! What an image and a setup that was made before add to the start of a run, and what a setup saves
//! against installing each time.
//!
//! The projects are real ones with what their registries have, brought through the gate by the
//! presets. Their toolchains are those of this machine, by the grants that `init` proposes; one that
//! is not there is named.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use ringfence_engine::home::Home;
use serde_json::json;

use crate::made::{self, Made, OCI_MANIFEST, digest, tar};
use crate::place::{Place, outside};
use crate::sample::{Contender, Samples, in_turn};
use crate::table::{Against, Bound, Table};

/// BOUND: enough that one slow round of a busy machine does not move a median.
const ROUNDS: usize = 40;
/// BOUND: an installation takes seconds to minutes.
const INSTALLATIONS: usize = 3;
/// What the issue allows.
const IMAGE: Bound = Bound::times(1.3);
const SETUP: Bound = Bound::times(1.5);
/// As many files as a small project has dependencies, in folders of twenty.
const INSTALL: &str = "i=0; while [ $i -lt 50 ]; do mkdir -p deps/$i; j=0; \
                       while [ $j -lt 20 ]; do echo $i $j > deps/$i/$j; j=$((j+1)); done; \
                       i=$((i+1)); done; echo done > ~/.tool";

/// Whole runs of a command that does nothing: on an image, and with a setup that is there.
pub fn starts(place: &Place, table: &mut Table) -> Result<()> {
    let root = place.beside("starts")?;
    let home = Home::open(Some(root.join("home")))?;
    let plain = root.join("plain");
    let set_up = root.join("set-up");
    for folder in [&plain, &set_up] {
        fs::create_dir(folder)?;
        fs::write(folder.join("lock"), "1\n")?;
    }
    let text = format!(
        "[environment]\nsetup = '''{INSTALL}'''\nkey = ['lock']\n[environment.cache]\npip = true\n"
    );
    fs::write(set_up.join("ringfence.toml"), text)?;
    let run = |folder: &Path, words: &[&str]| {
        let words = [&["run"], words, &["--", "/bin/true"]].concat();
        let mut command = place.program_at(&home, &words);
        command.current_dir(folder);
        command
    };
    let mut commands = vec![
        ("run -- true", run(&plain, &[])),
        ("with a setup that is there", run(&set_up, &[])),
    ];
    match image(place, &home, &root)? {
        Some(name) => {
            let on = ["--image", name];
            commands.push(("on an image of six layers", run(&plain, &on)));
            commands.push(("on it, with a setup that is there", run(&set_up, &on)));
        }
        None => table.note("images are not measured: there is no busybox"),
    }
    let mut contenders: Vec<Contender<'_>> = commands
        .iter_mut()
        .map(|(name, command)| Contender::new(*name, || outside(command)))
        .collect();
    let all = in_turn(ROUNDS, &mut contenders)?;
    drop(contenders);
    let names: Vec<&str> = commands.iter().map(|(name, _)| *name).collect();
    table.times(names[0], &all[0]);
    for (ours, other, bound) in [(1, 0, SETUP), (2, 0, IMAGE), (3, 2, SETUP)] {
        let Some(samples) = all.get(ours) else { break };
        let against = Against {
            name: names[other],
            samples: &all[other],
            bound,
        };
        table.held(names[ours], samples, against);
    }
    table.note("the setup made 1,000 files and one in the home; one cache");
    Ok(())
}

/// Takes in an image of six layers, of which the lowest has a shell.
fn image(place: &Place, home: &Home, root: &Path) -> Result<Option<&'static str>> {
    let found = ["/bin/busybox", "/usr/bin/busybox"].map(PathBuf::from);
    let Some(busybox) = found.into_iter().find(|path| path.is_file()) else {
        return Ok(None);
    };
    let mut tars = vec![tar(&[
        ("bin/", b""),
        ("bin/busybox", &fs::read(busybox)?),
        ("bin/sh", b"-> busybox"),
        ("bin/true", b"-> busybox"),
        ("bin/mkdir", b"-> busybox"),
        ("etc/", b""),
        ("tmp/", b""),
    ])];
    for number in 1..6 {
        let name = format!("usr/lib/part{number}");
        tars.push(tar(&[("usr/", b""), ("usr/lib/", b""), (&name, b"part")]));
    }
    let file = root.join("image.tar");
    fs::write(&file, layout(&made::image(&tars)))?;
    let name = "bench:1";
    let file = file.to_string_lossy();
    let words = ["image", "import", &file, "--name", name];
    outside(&mut place.program_at(home, &words)).context("cannot import an image")?;
    Ok(Some(name))
}

/// An image as an OCI layout.
fn layout(image: &Made) -> Vec<u8> {
    let index = json!({
        "schemaVersion": 2,
        "manifests": [{
            "mediaType": OCI_MANIFEST,
            "digest": digest(&image.manifest),
            "size": image.manifest.len(),
        }],
    })
    .to_string();
    let blobs: Vec<&[u8]> = [&image.manifest, &image.config]
        .into_iter()
        .chain(&image.blobs)
        .map(Vec::as_slice)
        .collect();
    let names: Vec<String> = blobs
        .iter()
        .map(|blob| digest(blob).replace("sha256:", "blobs/sha256/"))
        .collect();
    let mut entries: Vec<(&str, &[u8])> = vec![
        ("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#),
        ("index.json", index.as_bytes()),
    ];
    entries.extend(names.iter().map(String::as_str).zip(blobs));
    tar(&entries)
}

/// A small project, as its author has it.
struct Project {
    language: &'static str,
    /// What must be there to measure it.
    program: &'static str,
    files: &'static [(&'static str, &'static str)],
    /// Makes its lock file, on the host: these are the bench's own files.
    lock: Option<&'static [&'static str]>,
    preset: &'static str,
    install: &'static str,
    key: &'static str,
    cache: &'static str,
    /// Works only with its dependencies, and offline.
    uses: &'static str,
}

const PROJECTS: &[Project] = &[
    Project {
        language: "Python",
        program: "python3",
        files: &[(
            "requirements.txt",
            "flask==3.0.3\nrequests==2.32.3\nsqlalchemy==2.0.36\npytest==8.3.4\n",
        )],
        lock: None,
        preset: "pypi",
        install: "PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install -q --user -r requirements.txt",
        key: "requirements.txt",
        cache: "pip",
        uses: "python3 -c 'import flask, requests, sqlalchemy, pytest'",
    },
    Project {
        language: "Node",
        program: "npm",
        files: &[(
            "package.json",
            "{ \"name\": \"small\", \"version\": \"1.0.0\", \"private\": true, \
             \"dependencies\": { \"express\": \"4.21.2\", \"lodash\": \"4.17.21\", \
             \"typescript\": \"5.7.2\" } }\n",
        )],
        lock: Some(&["npm", "install", "--package-lock-only", "--ignore-scripts"]),
        preset: "npm",
        install: "npm ci --no-audit --no-fund",
        key: "package-lock.json",
        cache: "npm",
        uses: "node -e 'require(\"express\"); require(\"lodash\"); require(\"typescript\")'",
    },
    Project {
        language: "Rust",
        program: "cargo",
        files: &[
            (
                "Cargo.toml",
                "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\
                 [dependencies]\nserde = { version = \"=1.0.217\", features = [\"derive\"] }\n\
                 serde_json = \"=1.0.134\"\nregex = \"=1.11.1\"\n",
            ),
            (
                "src/main.rs",
                "fn main() { let v: serde_json::Value = serde_json::from_str(\"[1]\").unwrap(); \
                 assert!(regex::Regex::new(\"1\").unwrap().is_match(&v.to_string())); }\n",
            ),
        ],
        lock: Some(&["cargo", "generate-lockfile"]),
        preset: "cargo",
        install: "cargo build -q --locked",
        key: "Cargo.lock",
        cache: "cargo",
        uses: "cargo run -q --locked --offline",
    },
];

/// Projects of three languages: with a setup that is there, and installed anew in each sandbox.
pub fn against_installing(place: &Place, table: &mut Table) -> Result<()> {
    for project in PROJECTS {
        let called = Command::new(project.program).arg("--version").output();
        if !called.is_ok_and(|output| output.status.success()) {
            table.note(&format!(
                "{} is not measured: there is no `{}`",
                project.language, project.program
            ));
            continue;
        }
        one(place, table, project).with_context(|| project.language)?;
    }
    Ok(())
}

fn one(place: &Place, table: &mut Table, project: &Project) -> Result<()> {
    let root = place.beside(&format!("project-{}", project.program))?;
    let home = Home::open(Some(root.join("home")))?;
    let (with, without) = (root.join("with"), root.join("without"));
    for folder in [&with, &without] {
        write(folder, project)?;
    }
    let Project {
        install,
        key,
        cache,
        preset,
        uses,
        ..
    } = project;
    let text = format!(
        "[environment]\nsetup = '''{install}'''\nkey = ['{key}']\n[environment.cache]\n{cache} = true\n"
    );
    fs::write(with.join("ringfence.toml"), text)?;
    let call = |folder: &Path, words: &[&str]| {
        let mut command = place.program_at(&home, words);
        command.current_dir(folder);
        command
    };
    // The toolchain, as `init` grants it.
    let granted = call(&with, &["init", "--user", "--yes"]).output()?;
    ensure!(granted.status.success(), "{granted:?}");
    let granted = fs::read_to_string(home.root().join("policy.toml")).unwrap_or_default();
    let open = root.join("open.toml");
    let network = format!("\n[network]\nallow = [\"preset:{preset}\"]\n");
    fs::write(&open, format!("{granted}{network}"))?;
    let open = open.to_string_lossy().into_owned();
    let preset = format!("preset:{preset}");
    let words = ["run", "--setup-network", &preset, "--", "sh", "-ec", uses];
    let mut later = call(&with, &words);
    let both = format!("{install}; {uses}");
    let words = ["run", "--policy", &open, "--", "sh", "-ec", &both];
    let mut anew = call(&without, &words);

    let first = Contender::new("the first run, which sets up", || said(&mut later)).time()?;
    let (mut ours, mut others) = (Vec::new(), Vec::new());
    for _ in 0..INSTALLATIONS {
        others.push(Contender::new("installed anew", || said(&mut anew)).time()?);
        ours.push(Contender::new("with its setup", || said(&mut later)).time()?);
    }
    let (ours, others) = (Samples::new(ours), Samples::new(others));
    let language = project.language;
    table.times(&format!("{language}: sets up"), &Samples::new(vec![first]));
    table.times(&format!("{language}: installed anew"), &others);
    table.times(&format!("{language}: its setup is there"), &ours);
    let factor = others.median().as_secs_f64() / ours.median().as_secs_f64();
    table.note(&format!(
        "{language}: {factor:.1} × faster than installing anew; both use what was installed"
    ));
    Ok(())
}

fn write(folder: &Path, project: &Project) -> Result<()> {
    for (name, text) in project.files {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().context("a path")?)?;
        fs::write(path, text)?;
    }
    if let Some([program, words @ ..]) = project.lock {
        let mut lock = Command::new(program);
        said(lock.args(words).current_dir(folder)).context("cannot lock")?;
    }
    Ok(())
}

/// Runs to its end, and tells what it said where it failed.
fn said(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    let end = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {end}", output.status);
    Ok(())
}
