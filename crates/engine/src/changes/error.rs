//! What can go wrong with a change set as a whole. A path that merely cannot cross is no error:
//! it is listed as left behind.

use std::io;

use ringfence_model::ByteText;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum ChangesError {
    #[error("could not open the root of the layer")]
    OpenLayer(#[source] io::Error),
    #[error("could not open the base folder")]
    OpenBase(#[source] io::Error),
    #[error("could not look at `{path}`")]
    Look {
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
    #[error("could not go back up from `{path}`")]
    Climb {
        path: ByteText,
        #[source]
        source: io::Error,
    },
    #[error("could not read `{path}`")]
    Read {
        path: ByteText,
        #[source]
        source: io::Error,
    },
    #[error("`{path}` carries the overlay attribute `{attribute}`, which no layer of ours has")]
    OverlayAttribute {
        path: ByteText,
        attribute: &'static str,
    },
    #[error("more than {bound} paths changed")]
    TooManyChanges { bound: usize },
    #[error("`{path}` moved while the patch was written")]
    MovedWhileRendering { path: ByteText },
    #[error("the change set holds `{path}`, which is not below the folder")]
    OutsideFolder { path: ByteText },
    #[error("could not write the patch")]
    WritePatch(#[source] io::Error),
    #[error("could not remove `{name}`")]
    Remove {
        name: ByteText,
        #[source]
        source: io::Error,
    },
    #[error("could not give a layer to another owner")]
    Own(#[source] io::Error),
    #[error("could not measure the layer")]
    Measure(#[source] io::Error),
}
