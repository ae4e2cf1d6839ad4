//! `ringfence environment`.

use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anstream::eprintln;
use clap::{Args, Subcommand};
use ringfence_engine::attend::Inputs;
use ringfence_engine::backend::Native;
use ringfence_engine::environment::{self, Compared, EnvironmentError, Listed, Order};
use ringfence_engine::error::Error;
use ringfence_engine::workspace::open_folder;
use ringfence_jail::signals::Signals;
use ringfence_model::ByteText;
use ringfence_model::limits::HumanBytes;
use serde_json::{Value, json};

use super::limits::LimitArgs;
use super::open;
use super::policy::PolicyArgs;
use crate::console::{Live, Passing};
use crate::text::{clean, clean_json, shorten, time};

/// List, check and remove what setups have made
///
/// A setup (`[environment] setup` of a policy, or of a folder's `ringfence.toml`) runs once; what it
/// made is kept by the hash of all that went into it.
#[derive(Debug, Args)]
pub struct Environment {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List them, the least recently used first
    List {
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Say what went into one, and what it came to
    Show {
        /// Its key, or the beginning of that
        key: String,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    Verify(Box<Verify>),
    /// Remove one that no run or sandbox stands on
    Rm {
        /// Its key, or the beginning of that
        #[arg(required = true)]
        key: Vec<String>,
    },
}

/// Make one again from the same inputs, and list what differs
///
/// The setup runs again in a place of its own, and nothing of that is kept. Nothing is made equal that
/// is not: what a compiler or a package manager writes with a time in it differs. The exit code is 0
/// if both are equal and 1 if not.
#[derive(Debug, Args)]
struct Verify {
    /// Its key, or the beginning of that
    key: String,
    #[command(flatten)]
    policy: PolicyArgs,
    #[command(flatten)]
    limits: LimitArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Environment {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.verb {
            Verb::List { json } => list(json),
            Verb::Show { key, json } => show(&key, json),
            Verb::Verify(verb) => verb.run(),
            Verb::Rm { key } => {
                let (home, store) = open()?;
                for typed in key {
                    let found = environment::find(&store, &typed)?;
                    environment::remove(&home, &store, &found.key)?;
                }
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// As much of a key as tells it from others.
const SHOWN: usize = 12;

fn list(json: bool) -> anyhow::Result<ExitCode> {
    let (_, store) = open()?;
    let all = environment::list(&store)?;
    let mut out = io::stdout().lock();
    if json {
        for one in &all {
            writeln!(out, "{}", clean_json(&serde_json::to_string(one)?))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if all.is_empty() {
        writeln!(out, "no environments yet")?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        out,
        "{:<12}  {:<19}  {:>9}  {:<4}  SETUP",
        "KEY", "USED (UTC)", "SIZE", "USE"
    )?;
    for one in &all {
        let size = HumanBytes(one.bytes).to_string();
        let used = if one.in_use { "yes" } else { "-" };
        let setup = shorten(&clean(&one.setup.replace('\n', "; ")), 60);
        let key = &one.key[..SHOWN];
        writeln!(
            out,
            "{key:<12}  {:<19}  {size:>9}  {used:<4}  {setup}",
            time(one.used_us)
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(key: &str, json: bool) -> anyhow::Result<ExitCode> {
    let (home, store) = open()?;
    let one = environment::find(&store, key)?;
    let mut out = io::stdout().lock();
    if json {
        writeln!(out, "{}", clean_json(&serde_json::to_string(&one)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    let folder = one
        .folder
        .as_ref()
        .map(ByteText::to_text)
        .unwrap_or_default();
    writeln!(out, "key       {}", one.key)?;
    writeln!(out, "folder    {}", clean(&folder))?;
    writeln!(
        out,
        "image     {}",
        clean(one.image.as_deref().unwrap_or("host"))
    )?;
    writeln!(
        out,
        "setup     {}",
        clean(&one.setup.replace('\n', "\n          "))
    )?;
    writeln!(out, "size      {}", HumanBytes(one.bytes))?;
    writeln!(
        out,
        "made      {} UTC, used {} UTC",
        time(one.created_us),
        time(one.used_us)
    )?;
    let inputs = one.detail.get("inputs");
    for (name, key) in [
        ("key file", "key"),
        ("reaches", "network"),
        ("cache", "caches"),
    ] {
        let list = inputs
            .and_then(|inputs| inputs.get(key))
            .and_then(Value::as_array);
        for item in list.into_iter().flatten() {
            writeln!(out, "{name:<9} {}", clean(&words(item)))?;
        }
    }
    for (name, version) in one
        .detail
        .get("tools")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        writeln!(
            out,
            "{:<9} {}",
            clean(name),
            clean(version.as_str().unwrap_or_default())
        )?;
    }
    for note in one
        .detail
        .get("notes")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        writeln!(
            out,
            "note      {}",
            clean(note.as_str().unwrap_or_default())
        )?;
    }
    for (name, digest) in digests(&one) {
        writeln!(out, "{name:<9} sha256:{digest}")?;
    }
    writeln!(out, "output    {}", home.environment(&one.key).display())?;
    Ok(ExitCode::SUCCESS)
}

fn words(item: &Value) -> String {
    match (item.get("path"), item.get("sha256"), item.as_str()) {
        (Some(Value::String(path)), Some(Value::String(sha256)), _) => format!("{path} {sha256}"),
        (_, _, Some(text)) => text.to_owned(),
        _ => item.to_string(),
    }
}

fn digests(one: &Listed) -> impl Iterator<Item = (&str, &str)> {
    let own = one.detail.iter();
    own.filter_map(|(name, value)| Some((name.strip_suffix("_sha256")?, value.as_str()?)))
}

impl Verify {
    fn run(self) -> anyhow::Result<ExitCode> {
        let signals = Signals::hold()?;
        let (home, store) = open()?;
        let one = environment::find(&store, &self.key)?;
        let typed = one
            .folder
            .as_ref()
            .ok_or(EnvironmentError::NoFolder)
            .map_err(Error::from)?;
        let typed = PathBuf::from(std::ffi::OsStr::from_bytes(typed.as_bytes()));
        let folder = open_folder(&home, &typed)?;
        let path = folder.path();
        let asked = self.policy.asked(&home, &self.limits, Some(path))?;
        let settled = asked.settle(&home, path).map_err(Error::Policy)?;
        let program = std::env::current_exe()?;
        let order = Order::of_folder(
            (&settled.effective, &settled.limits),
            &program,
            &Native,
            &folder,
            None,
        )?;
        let mut console = Live::new(Passing::ToStderr, false);
        let resolved = environment::resolve(&home, &store, &order, &mut console)?;
        let changed = || EnvironmentError::Changed {
            folder: path.to_owned(),
        };
        let resolved = resolved.ok_or_else(changed).map_err(Error::from)?;
        let inputs = Inputs {
            stdin: None,
            signals: Some(&signals),
        };
        let compared = environment::verify(&home, &order, &resolved, &one, &inputs, &mut console);
        console.finish();
        let compared = compared?;
        let mut out = io::stdout().lock();
        if self.json {
            writeln!(out, "{}", clean_json(&json!(compared).to_string()))?;
        } else {
            tell(&mut out, &compared)?;
        }
        Ok(if compared.equal {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

fn tell(out: &mut dyn io::Write, compared: &Compared) -> io::Result<()> {
    if compared.equal {
        for (name, digest) in &compared.kept {
            let name = name.trim_end_matches("_sha256");
            writeln!(out, "{name} sha256:{}", digest.as_str().unwrap_or_default())?;
        }
        return writeln!(out, "equal");
    }
    for difference in &compared.differences {
        let path = clean(&difference.path.to_text());
        writeln!(out, "{path}: {}", difference.how.as_str())?;
    }
    let more = compared
        .count
        .saturating_sub(compared.differences.len() as u64);
    if more > 0 {
        writeln!(out, "… and {more} more")?;
    }
    if compared.count == 0 {
        writeln!(out, "attributes of files differ, and nothing else")?;
    }
    eprintln!("{} paths differ", compared.count);
    Ok(())
}
