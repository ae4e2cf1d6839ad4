//! `ringfence image`.

mod progress;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anstream::eprintln;
use clap::{Args, Subcommand};
use ringfence_engine::error::Error;
use ringfence_engine::images::{self, Image as Found, PullOptions, Removed};
use ringfence_engine::policy;
use ringfence_engine::store::ImageRecord;
use ringfence_engine::web::PlainHttp;
use ringfence_model::image::Reference;
use ringfence_model::limits::HumanBytes;
use serde_json::{Value, json};

use crate::text::{clean, clean_json};
use progress::Shown;

/// Pull, import, list, check and remove images, without Docker
///
/// An image is unpacked once into layers that all sandboxes share and none can change. Credentials
/// are those of `docker login` (`~/.docker/config.json`, its helpers, `DOCKER_CONFIG`).
#[derive(Debug, Args)]
pub struct Image {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Get an image from its registry
    ///
    /// Layers that are here already are not got again, and a pull that was interrupted goes on
    /// where it was.
    Pull {
        /// As Docker writes it: `python:3.13-slim`, `registry.example:5000/team/app@sha256:…`
        image: String,
        /// Speak to the registry without TLS; on this machine that is tried anyway
        #[arg(long)]
        plain_http: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// List the images that are here
    List {
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Remove images, or names of them
    ///
    /// An image that has other names loses only this one. One that something stands on or runs on
    /// is not removed.
    Rm {
        /// Names or digests
        #[arg(required = true)]
        images: Vec<String>,
    },
    /// Take in a file: of `docker save`, an OCI layout, or a root file system
    Import {
        /// A tar file, compressed or not; `-` is standard input
        file: PathBuf,
        /// What to call it; needed where the file does not say
        #[arg(long)]
        name: Option<String>,
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Digest the layers of an image again, and say what is not as it was
    ///
    /// Exits with 1 where something differs.
    Verify {
        /// A name or a digest
        image: String,
        /// Print one JSON object per layer
        #[arg(long)]
        json: bool,
    },
}

impl Image {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (home, store) = super::open()?;
        let mut out = std::io::stdout().lock();
        match self.command {
            Command::Pull {
                image,
                plain_http,
                json,
            } => {
                let own = policy::of_host(&home, None, None).map_err(Error::Policy)?;
                let options = PullOptions {
                    registries: &own.sources.registries,
                    plain_http: if plain_http {
                        PlainHttp::Allowed
                    } else {
                        PlainHttp::LoopbackOnly
                    },
                    ..PullOptions::default()
                };
                let mut shown = Shown::start();
                let pulled = images::pull(&home, &store, &image, options, &mut shown);
                shown.end();
                print(&mut out, &pulled.map_err(Error::Image)?, json)?;
            }
            Command::Import { file, name, json } => {
                let file = if file.as_os_str() == "-" {
                    PathBuf::from("/dev/stdin")
                } else {
                    file
                };
                let mut shown = Shown::start();
                let imported = images::import(&home, &store, &file, name.as_deref(), &mut shown);
                shown.end();
                for image in imported.map_err(Error::Image)? {
                    print(&mut out, &image, json)?;
                }
            }
            Command::List { json } => {
                for (image, bytes) in images::all(&store).map_err(Error::Image)? {
                    if json {
                        writeln!(out, "{}", clean_json(&row(&image, bytes).to_string()))?
                    } else {
                        write_row(&mut out, &image, bytes)?
                    }
                }
            }
            Command::Rm { images } => {
                for text in images {
                    let removed = images::remove(&home, &store, &text).map_err(Error::Image)?;
                    eprintln!("{}: {}", clean(&text), text_of(removed));
                }
            }
            Command::Verify { image, json } => {
                let layers = images::verify(&home, &store, &image).map_err(Error::Image)?;
                let mut same = true;
                for layer in layers {
                    same &= layer.differences.is_empty();
                    if json {
                        let differences: Vec<Value> = layer
                            .differences
                            .iter()
                            .map(|one| json!({ "path": one.path, "what": one.what }))
                            .collect();
                        let row = json!({
                            "layer": layer.diff,
                            "same": differences.is_empty(),
                            "differences": differences,
                            "more": layer.more,
                        });
                        writeln!(out, "{}", clean_json(&row.to_string()))?;
                        continue;
                    }
                    let state = if layer.differences.is_empty() {
                        "as it was unpacked"
                    } else {
                        "changed"
                    };
                    writeln!(out, "{}  {state}", layer.diff)?;
                    for one in &layer.differences {
                        let path = clean(&one.path.to_text());
                        writeln!(out, "    `{path}` {}", one.what)?;
                    }
                    if layer.more {
                        writeln!(out, "    and more")?;
                    }
                }
                if !same {
                    return Ok(ExitCode::FAILURE);
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn text_of(removed: Removed) -> &'static str {
    match removed {
        Removed::NameOnly => "the name is gone; the image has others",
        Removed::All => "removed",
        Removed::LayersLater => {
            "removed; `ringfence gc` removes its layers, as an image is being added just now"
        }
    }
}

/// One image that was just taken in.
fn print(out: &mut impl std::io::Write, image: &Found, json: bool) -> anyhow::Result<()> {
    if json {
        let row = json!({
            "reference": image.reference,
            "digest": image.digest,
            "layers": image.layers.len(),
        });
        writeln!(out, "{}", clean_json(&row.to_string()))?;
    } else {
        writeln!(out, "{}  {}", image.digest, clean(&image.reference))?
    }
    Ok(())
}

fn row(image: &ImageRecord, bytes: u64) -> Value {
    json!({
        "digest": image.digest,
        "names": names(image),
        "layers": image.layers,
        "bytes": bytes,
        "created_us": image.created_us,
        "used_us": image.used_us,
        "architecture": image.config.architecture,
        "os": image.config.os,
        "user": image.config.user,
    })
}

fn write_row(
    out: &mut impl std::io::Write,
    image: &ImageRecord,
    bytes: u64,
) -> std::io::Result<()> {
    let names = match names(image) {
        names if names.is_empty() => "(no name)".to_owned(),
        names => names.join(", "),
    };
    let short: String = image.digest.hex().chars().take(12).collect();
    writeln!(
        out,
        "{short}  {:>8}  {}",
        HumanBytes(bytes).to_string(),
        clean(&names)
    )
}

/// As a person would write them.
fn names(image: &ImageRecord) -> Vec<String> {
    let familiar = |name: &String| match name.parse::<Reference>() {
        Ok(reference) => reference.familiar(),
        Err(_) => name.clone(),
    };
    image.names.iter().map(familiar).collect()
}
