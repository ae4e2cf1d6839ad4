//! Pulling: which image it is, what of it is missing, and then all layers at once.
//!
//! ```text
//! manifest ─▶ config ─▶ ┌ layer: download ─▶ unpack ┐
//!                       ├ layer: download ─▶ unpack ┼─▶ one sync ─▶ names ─▶ row
//!                       └ layer: is here already    ┘
//! ```
//!
//! INVARIANT: an image is in the store when all of it is on the disk, and not before. Whoever is
//! killed leaves partial blobs, from which the next pull goes on.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Instant;

use ringfence_model::image::{Digest, Reference};
use ringfence_model::policy::Line;

use super::config::{self, ImageConfig};
use super::download::{self, Wanted};
use super::list::Listed;
use super::manifest::{self, Descriptor, Manifest};
use super::registry::Registry;
use super::shelf::{Making, Shelf, digest_of, merge_notes};
use super::unpack::{self, Owners};
use super::{BOUNDS, Event, Image, ImageError, Note, Progress};
use crate::clock::{ms_since, now_us};
use crate::fail;
use crate::home::Home;
use crate::lock::FileLock;
use crate::store::{ImageLayerRecord, ImageRecord, Store};
use crate::web::PlainHttp;

/// BOUND: layers that are got and unpacked at once; more share the same line and the same disk.
const AT_ONCE: usize = 6;
/// BOUND: an index of indexes; nobody makes a third.
const INDEXES: usize = 3;

#[derive(Clone, Copy, Debug, Default)]
pub struct PullOptions<'a> {
    pub plain_http: PlainHttp,
    /// Registries that the user's own policy names; tokens are taken from these as well.
    pub registries: &'a [Line],
    /// Nobody is told who asks.
    pub anonymous: bool,
}

/// A layer as it is downloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSize {
    pub diff: Digest,
    pub bytes: u64,
    /// Nothing is to be done for it.
    pub here: bool,
}

/// Gets an image from its registry. Layers that are here are not got again.
pub fn pull(
    home: &Home,
    store: &Store,
    reference: &str,
    options: PullOptions<'_>,
    progress: &mut dyn Progress,
) -> Result<Image, ImageError> {
    let began = Instant::now();
    let name: Reference = reference.parse()?;
    let shelf = Shelf::open(home)?;
    let _adding = shelf.share(|| progress.happened(Event::Waiting))?;
    let registry = Registry::open(&name, options)?;
    let found = find_out(&registry, &name, progress)?;
    let layers = found.sizes(&shelf)?;
    progress.happened(Event::Found {
        digest: found.digest,
        layers: layers.clone(),
    });
    let jobs: Vec<usize> = layers
        .iter()
        .enumerate()
        .filter(|(at, layer)| {
            // The same layer twice is unpacked once.
            !layer.here && found.diffs[..*at].iter().all(|diff| *diff != layer.diff)
        })
        .map(|(at, _)| at)
        .collect();
    let got = get_layers(&shelf, &registry, &name, &found, &jobs, progress)?;
    for (digest, bytes) in &found.documents {
        shelf.keep_blob(*digest, bytes)?;
    }
    let mut notes = Vec::new();
    let layers = publish(&shelf, &found.diffs, got, &mut notes)?;
    shelf.sync_names()?;
    fail::point("image:named");
    let record = ImageRecord {
        digest: found.digest,
        layers: found.diffs,
        documents: found.documents.iter().map(|(digest, _)| *digest).collect(),
        config: found.config,
        created_us: now_us(),
        used_us: now_us(),
        names: vec![name.to_string()],
    };
    store.insert_image(&record, &layers)?;
    fail::point("image:recorded");
    let fetched = jobs.len();
    for at in jobs {
        forget_partial(&shelf, found.blobs[at].digest);
    }
    for note in notes {
        progress.happened(Event::Noted(note));
    }
    tracing::info!(
        image = ?name.to_string(),
        digest = %record.digest,
        layers = record.layers.len(),
        new = fetched,
        ms = ms_since(began),
        "image pulled"
    );
    Ok(super::image(&shelf, record, reference))
}

/// All that is said of an image before its layers are there.
struct Found {
    digest: Digest,
    config: ImageConfig,
    /// The lowest first, as the blobs.
    diffs: Vec<Digest>,
    blobs: Vec<Descriptor>,
    documents: Vec<(Digest, Vec<u8>)>,
}

impl Found {
    fn sizes(&self, shelf: &Shelf) -> Result<Vec<LayerSize>, ImageError> {
        let both = self.diffs.iter().zip(&self.blobs);
        both.map(|(diff, blob)| {
            Ok(LayerSize {
                diff: *diff,
                bytes: blob.size,
                here: shelf.record(*diff)?.is_some(),
            })
        })
        .collect()
    }
}

fn find_out(
    registry: &Registry,
    name: &Reference,
    progress: &mut dyn Progress,
) -> Result<Found, ImageError> {
    let shown = name.familiar();
    let document = |what, why| ImageError::Document {
        what,
        reference: shown.clone(),
        why,
    };
    let progress = RefCell::new(progress);
    let on_retry = |why: String, seconds: u64| {
        let mut progress = progress.borrow_mut();
        progress.happened(Event::Retrying { why, seconds });
    };
    let mut documents = Vec::new();
    let mut version = name.version();
    let mut expected = name.digest();
    for _ in 0..INDEXES {
        let headers = [("accept", manifest::ACCEPTED)];
        let answer = registry.get(&format!("manifests/{version}"), &headers, &on_retry)?;
        let bytes = answer.bytes(manifest::BYTES)?;
        let digest = digest_of(&bytes);
        if let Some(expected) = expected.filter(|expected| *expected != digest) {
            return Err(ImageError::WrongDigest {
                what: "the manifest",
                reference: shown,
                expected,
                found: digest,
            });
        }
        let read = manifest::read(&bytes).map_err(|why| document("the manifest", why))?;
        documents.push((digest, bytes));
        match read {
            Manifest::Index(manifests) => {
                let chosen = manifest::choose(&manifests);
                let chosen = chosen.map_err(|made_for| wrong_machine(&shown, &made_for))?;
                version = chosen.digest.to_string();
                expected = Some(chosen.digest);
            }
            Manifest::Image { config, layers } => {
                let bytes = small_blob(registry, &shown, &config, &on_retry)?;
                let (read, diffs) =
                    config::read(&bytes).map_err(|why| document("the configuration", why))?;
                documents.push((config.digest, bytes));
                check(&shown, &read, &diffs, layers.len())?;
                return Ok(Found {
                    digest,
                    config: read,
                    diffs,
                    blobs: layers,
                    documents,
                });
            }
        }
    }
    Err(document(
        "the index",
        "it names only other indexes".to_owned(),
    ))
}

/// Whether the parts of an image go together, and with this machine.
pub(super) fn check(
    reference: &str,
    config: &ImageConfig,
    diffs: &[Digest],
    blobs: usize,
) -> Result<(), ImageError> {
    if config.os != "linux" || config.architecture != config::architecture() {
        let made_for = format!("{}/{}", config.os, config.architecture);
        return Err(wrong_machine(reference, &made_for));
    }
    if diffs.len() != blobs {
        return Err(ImageError::Document {
            what: "the configuration",
            reference: reference.to_owned(),
            why: format!("it speaks of {} layers, and there are {blobs}", diffs.len()),
        });
    }
    Ok(())
}

pub(super) fn wrong_machine(reference: &str, made_for: &str) -> ImageError {
    let plain: String = made_for
        .chars()
        .filter(|c| !c.is_control())
        .take(300)
        .collect();
    ImageError::Architecture {
        reference: reference.to_owned(),
        here: format!("linux/{}", config::architecture()),
        made_for: plain,
    }
}

fn small_blob(
    registry: &Registry,
    reference: &str,
    descriptor: &Descriptor,
    on_retry: super::registry::OnRetry<'_>,
) -> Result<Vec<u8>, ImageError> {
    let path = format!("blobs/{}", descriptor.digest);
    let bytes = registry.get(&path, &[], on_retry)?.bytes(manifest::BYTES)?;
    let found = digest_of(&bytes);
    if found != descriptor.digest {
        return Err(ImageError::WrongDigest {
            what: "the configuration",
            reference: reference.to_owned(),
            expected: descriptor.digest,
            found,
        });
    }
    Ok(bytes)
}

/// A layer that was unpacked, without a name yet.
pub(super) struct Got {
    pub making: Making,
    pub list: BTreeMap<Vec<u8>, Listed>,
    pub notes: Vec<Note>,
}

/// Gets and unpacks layers, some at once; the first failure ends all.
fn get_layers(
    shelf: &Shelf,
    registry: &Registry,
    name: &Reference,
    found: &Found,
    jobs: &[usize],
    progress: &mut dyn Progress,
) -> Result<BTreeMap<Digest, Got>, ImageError> {
    // The largest first, so that none is left alone at the end.
    let mut queue: Vec<usize> = jobs.to_vec();
    queue.sort_by_key(|at| std::cmp::Reverse(found.blobs[*at].size));
    let queue = Mutex::new(VecDeque::from(queue));
    let stop = AtomicBool::new(false);
    let (events, heard) = mpsc::channel();
    let work = |events: Sender<Event>| -> Result<Vec<(Digest, Got)>, ImageError> {
        let mut got = Vec::new();
        loop {
            let next = queue.lock().map_err(|_| ImageError::Thread)?.pop_front();
            let Some(layer) = next.filter(|_| !stop.load(Ordering::Relaxed)) else {
                return Ok(got);
            };
            let job = Job {
                shelf,
                registry,
                name,
                layer,
                blob: &found.blobs[layer],
                diff: found.diffs[layer],
                stop: &stop,
                events: &events,
            };
            match job.run() {
                Ok(Some(done)) => got.push((found.diffs[layer], done)),
                Ok(None) => {}
                Err(error) => {
                    stop.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
    };
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for _ in 0..AT_ONCE.min(jobs.len()) {
            let events = events.clone();
            let work = &work;
            let thread = thread::Builder::new().spawn_scoped(scope, move || work(events));
            threads.push(thread.map_err(|source| ImageError::Access {
                what: "start a thread for",
                path: shelf.partials(),
                source,
            }));
        }
        drop(events);
        // Ends when the last thread has let go of its end.
        for event in heard {
            progress.happened(event);
        }
        let mut got = BTreeMap::new();
        let mut failure = None;
        for thread in threads {
            let result = match thread {
                Ok(thread) => thread.join().map_err(|_| ImageError::Thread).flatten(),
                Err(error) => Err(error),
            };
            match result {
                Ok(done) => got.extend(done),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        match failure {
            Some(error) => Err(error),
            None => Ok(got),
        }
    })
}

struct Job<'a> {
    shelf: &'a Shelf,
    registry: &'a Registry,
    name: &'a Reference,
    layer: usize,
    blob: &'a Descriptor,
    diff: Digest,
    stop: &'a AtomicBool,
    events: &'a Sender<Event>,
}

impl Job<'_> {
    /// `None` where somebody else made the layer meanwhile, or all is to stop.
    fn run(&self) -> Result<Option<Got>, ImageError> {
        let lock = self.shelf.partial_lock(self.blob.digest);
        let _lock = FileLock::wait(&lock, || self.tell(Event::Waiting))?;
        if self.shelf.record(self.diff)?.is_some() {
            self.tell(Event::Unpacked { layer: self.layer });
            return Ok(None);
        }
        let layer = self.layer;
        let on_bytes = |bytes| self.tell(Event::Downloaded { layer, bytes });
        let on_retry = |why, seconds| self.tell(Event::Retrying { why, seconds });
        let wanted = Wanted {
            registry: self.registry,
            reference: self.name,
            descriptor: self.blob,
            stop: self.stop,
            on_bytes: &on_bytes,
            on_retry: &on_retry,
        };
        let partial = self.shelf.partial(self.blob.digest);
        let Some(file) = download::download(&wanted, &partial)? else {
            return Ok(None);
        };
        self.tell(Event::Unpacking { layer });
        let got = unpack_layer(
            self.shelf,
            file,
            layer,
            &self.name.familiar(),
            Some(self.diff),
        );
        // What cannot be unpacked now can never be.
        if matches!(&got, Err(error) if error.kind() == crate::error::ErrorKind::Invalid) {
            let _ = std::fs::remove_file(&partial);
        }
        let (_, got) = got?;
        self.tell(Event::Unpacked { layer });
        Ok(Some(got))
    }

    fn tell(&self, event: Event) {
        // Nobody listens only where all is over.
        let _ = self.events.send(event);
    }
}

/// Unpacks one layer and checks that it is the one that was meant.
pub(super) fn unpack_layer(
    shelf: &Shelf,
    source: impl std::io::Read,
    layer: usize,
    reference: &str,
    diff: Option<Digest>,
) -> Result<(Digest, Got), ImageError> {
    let number = layer + 1;
    let mut making = shelf.make()?;
    let root = making.root.take().ok_or(ImageError::Thread)?;
    let unpacked = unpack::unpack(
        source,
        root,
        BOUNDS,
        &shelf.spent,
        Owners::of_this_process(),
    );
    let unpacked = unpacked.map_err(|source| ImageError::Unpack {
        number,
        reference: reference.to_owned(),
        source,
    })?;
    if let Some(expected) = diff.filter(|diff| *diff != unpacked.diff) {
        return Err(ImageError::WrongDiff {
            number,
            reference: reference.to_owned(),
            expected,
            found: unpacked.diff,
        });
    }
    fail::point("image:unpacked");
    let got = Got {
        making,
        list: unpacked.list,
        notes: unpacked.notes,
    };
    Ok((unpacked.diff, got))
}

/// Syncs what was unpacked, all at once, and gives it its names; tells of all layers of the image.
pub(super) fn publish(
    shelf: &Shelf,
    diffs: &[Digest],
    got: BTreeMap<Digest, Got>,
    notes: &mut Vec<Note>,
) -> Result<Vec<ImageLayerRecord>, ImageError> {
    let mut records = BTreeMap::new();
    for (diff, got) in &got {
        records.insert(*diff, got.making.write_list(*diff, &got.list)?);
    }
    // One for all: each costs what everybody else has written meanwhile.
    shelf.sync()?;
    fail::point("image:synced");
    for (diff, got) in got {
        merge_notes(notes, got.notes);
        got.making.publish(diff)?;
    }
    for diff in diffs {
        if !records.contains_key(diff) {
            let record = shelf.record(*diff)?;
            let gone = || ImageError::Access {
                what: "find the layer",
                path: shelf.layer(*diff),
                source: std::io::ErrorKind::NotFound.into(),
            };
            records.insert(*diff, record.ok_or_else(gone)?);
        }
    }
    Ok(records.into_values().collect())
}

/// A blob whose layer is here is not needed any more.
fn forget_partial(shelf: &Shelf, blob: Digest) {
    let lock = shelf.partial_lock(blob);
    // Whoever waits for it sees that the layer is here; what cannot be removed is left to `gc`.
    if let Ok(Some(_held)) = FileLock::take(&lock) {
        let _ = std::fs::remove_file(shelf.partial(blob));
        let _ = std::fs::remove_file(lock);
    }
}
