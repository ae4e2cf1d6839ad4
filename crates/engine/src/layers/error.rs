//! What can go wrong with a layer.

use std::io;

use ringfence_model::ByteText;
use thiserror::Error;

use crate::changes::ChangesError;

#[derive(Debug, Error)]
pub enum LayersError {
    #[error("there is no layer to merge")]
    NoLayers,
    #[error("could not open the root of a layer")]
    Open(#[source] io::Error),
    #[error("could not read `{path}`")]
    Read {
        path: ByteText,
        #[source]
        source: io::Error,
    },
    #[error("could not list the directory `{path}`")]
    List {
        path: ByteText,
        #[source]
        source: io::Error,
    },
    #[error("could not look below the layers at `{path}`")]
    LookBelow {
        path: ByteText,
        #[source]
        source: io::Error,
    },
    #[error("could not make `{path}`")]
    Make {
        path: ByteText,
        #[source]
        source: io::Error,
    },
    #[error("could not go back up from `{path}`")]
    Climb {
        path: ByteText,
        #[source]
        source: io::Error,
    },
    #[error("`{path}` carries the overlay attribute `{attribute}`, which no layer of ours has")]
    OverlayAttribute {
        path: ByteText,
        attribute: &'static str,
    },
    #[error("could not remove the place where links were made")]
    RemoveYard(#[source] ChangesError),
    #[error("could not write the layer to disk")]
    Sync(#[source] io::Error),
    #[error("could not measure the layer")]
    Usage(#[source] ChangesError),
}
