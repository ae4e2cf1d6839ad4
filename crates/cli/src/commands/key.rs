//! `ringfence key`.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anstream::eprintln;
use clap::{Args, Subcommand};
use ringfence_engine::error::Error;
use ringfence_engine::home::Home;
use ringfence_engine::keys::{self, KeyError, PublicKey};
use serde_json::json;

use crate::text::clean;

/// Show the key that signs bundles, and say whose signatures are trusted
///
/// The key is made on first use and stays in the home; its secret part is never printed.
#[derive(Debug, Args)]
pub struct Key {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the id of this installation's own key
    Show {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print this installation's public key (PEM), to be trusted elsewhere
    Export,
    /// Trust the public key of another installation
    Trust {
        /// What the key is called here
        name: String,
        /// A file with the key (PEM); standard input if not said, or `-`
        file: Option<PathBuf>,
    },
    /// List the keys that are trusted, this installation's own first
    List {
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Trust a key no more
    Untrust {
        /// What the key is called here
        name: String,
    },
}

/// BOUND: a key has some 150 bytes.
const KEY_BYTES: u64 = 4096;

impl Key {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let home = Home::open(None).map_err(Error::Home)?;
        let mut out = std::io::stdout().lock();
        match self.command {
            Command::Show { json } => {
                let key = keys::own(&home).map_err(Error::Key)?.public();
                if json {
                    writeln!(out, "{}", row("own", None, &key))?
                } else {
                    writeln!(out, "{}", key.id())?
                }
            }
            Command::Export => {
                let key = keys::own(&home).map_err(Error::Key)?.public();
                write!(out, "{}", key.pem())?;
            }
            Command::Trust { name, file } => {
                let key = read(file.as_deref())?;
                keys::trust(&home, &name, &key).map_err(Error::Key)?;
                eprintln!("trusted as {}: {}", clean(&name), key.id());
            }
            Command::List { json } => {
                let own = keys::own_public(&home).map_err(Error::Key)?;
                let others = keys::trusted(&home).map_err(Error::Key)?;
                let own = own.map(|key| ("own", None, key));
                let others = others
                    .iter()
                    .map(|other| ("trusted", Some(&other.name[..]), other.key));
                for (kind, name, key) in own.into_iter().chain(others) {
                    if json {
                        writeln!(out, "{}", row(kind, name, &key))?
                    } else {
                        writeln!(out, "{}  {}", key.id(), name.unwrap_or("(own)"))?
                    }
                }
            }
            Command::Untrust { name } => {
                keys::untrust(&home, &name).map_err(Error::Key)?;
                eprintln!("not trusted any more: {}", clean(&name));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn row(kind: &str, name: Option<&str>, key: &PublicKey) -> serde_json::Value {
    json!({ "kind": kind, "name": name, "keyid": key.id(), "public_key": key.pem() })
}

fn read(file: Option<&Path>) -> Result<PublicKey, Error> {
    if let Some(path) = file.filter(|path| *path != Path::new("-")) {
        return Ok(keys::read_public(path)?);
    }
    let path = PathBuf::from("standard input");
    let mut text = String::new();
    let read = std::io::stdin().take(KEY_BYTES).read_to_string(&mut text);
    match read {
        Ok(_) => {
            let parse = || KeyError::Parse { path: path.clone() };
            Ok(PublicKey::from_pem(&text).ok_or_else(parse)?)
        }
        Err(source) => Err(Error::ReadFile { path, source }),
    }
}
