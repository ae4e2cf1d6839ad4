//! `ringfence sandbox move`.

use std::process::ExitCode;

use anstream::eprintln;
use clap::Args;
use ringfence_engine::sandboxes::relocate::{Destination, relocate};
use ringfence_model::policy::Line;

use crate::commands::backends::HeldArgs;
use crate::commands::limits::typed_as;
use crate::commands::open_host;
use crate::text::clean;

/// Give a sandbox another execution: the same workspace, held by another backend or on another image
///
/// What runs in it ends. The next command begins there.
#[derive(Debug, Args)]
pub struct Move {
    /// Id, its beginning, name, or `last`
    #[arg(value_name = "SANDBOX")]
    sandbox: String,
    #[command(flatten)]
    held: HeldArgs,
    /// The image that is `/` there; `host` for none [default: as it was]
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
}

impl Move {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let host = open_host()?;
        let id = host.store.find_sandbox(&self.sandbox)?.id;
        let to = Destination {
            backend: self.held.choice(),
            image: self.image.map(|text| Line {
                text,
                from: typed_as("--image"),
            }),
        };
        let moved = relocate(&host, id, &to)?;
        let ended = match moved.processes {
            0 => String::new(),
            1 => "; 1 process was ended".to_owned(),
            n => format!("; {n} processes were ended"),
        };
        let image = moved.image.map(|image| format!(" on {image}"));
        let image = image.unwrap_or_default();
        eprintln!("{id} is held by {}{}{ended}", moved.backend, clean(&image));
        Ok(ExitCode::SUCCESS)
    }
}
