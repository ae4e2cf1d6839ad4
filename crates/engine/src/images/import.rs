//! Images from a file: what `docker save` writes, an OCI layout, or a root file system.
//!
//! HOSTILE: the file is a tar that somebody made. It is read where its own headers say, by offset,
//! and nothing of it is unpacked but layers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use ringfence_model::image::{Digest, Reference};
use rustix::fs::{Mode, OFlags};
use serde::Deserialize;

use super::config::{self, ImageConfig, architecture};
use super::decode::Decoded;
use super::manifest::{self, Descriptor, Manifest};
use super::pull::{Got, LayerSize, check, publish, unpack_layer, wrong_machine};
use super::shelf::{MAKING, Shelf, digest_of};
use super::tar::{EntryKind, Reader, TarError};
use super::{BOUNDS, Event, Image, ImageError, Progress};
use crate::clock::now_us;
use crate::fail;
use crate::home::Home;
use crate::ids::LayerId;
use crate::store::{ImageRecord, Store};

/// BOUND: images in one file.
const IMAGES: usize = 100;
/// BOUND: links from one name to another; `docker save` makes one.
const LINKS: usize = 5;
/// Where a layout says what an image is called.
const NAMES: [&str; 2] = [
    "io.containerd.image.name",
    "org.opencontainers.image.ref.name",
];

/// Imports all images of a file; `name` is for a file with one.
pub fn import(
    home: &Home,
    store: &Store,
    path: &Path,
    name: Option<&str>,
    progress: &mut dyn Progress,
) -> Result<Vec<Image>, ImageError> {
    let name: Option<Reference> = name.map(str::parse).transpose()?;
    let shelf = Shelf::open(home)?;
    let _adding = shelf.share(|| progress.happened(Event::Waiting))?;
    let archive = Archive::open(&shelf, path)?;
    let images = archive.images()?;
    if name.is_some() && images.len() > 1 {
        return Err(archive.no_image(format!(
            "it has {} images, and a name can be given to one",
            images.len()
        )));
    }
    images
        .into_iter()
        .map(|image| keep(&shelf, store, &archive, &image, name.as_ref(), progress))
        .collect()
}

/// An image of the file.
struct Inside {
    digest: Digest,
    names: Vec<Reference>,
    parts: Parts,
    documents: Vec<(Digest, Vec<u8>)>,
}

enum Parts {
    /// Diff ids and where their layers are, the lowest first.
    Layers {
        config: Box<ImageConfig>,
        diffs: Vec<Digest>,
        places: Vec<Place>,
    },
    /// The whole file is one.
    RootFs,
}

fn keep(
    shelf: &Shelf,
    store: &Store,
    archive: &Archive,
    image: &Inside,
    name: Option<&Reference>,
    progress: &mut dyn Progress,
) -> Result<Image, ImageError> {
    let names: Vec<Reference> = match name {
        Some(name) => vec![name.clone()],
        None => image.names.clone(),
    };
    let Some(first) = names.first().map(Reference::familiar) else {
        return Err(ImageError::Nameless(archive.path.clone()));
    };
    let mut got = BTreeMap::new();
    let (digest, config, diffs, documents) = match &image.parts {
        Parts::RootFs => {
            progress.happened(Event::Unpacking { layer: 0 });
            let all = archive.section(Place {
                at: 0,
                size: archive.size,
            });
            let (diff, layer) = unpack_layer(shelf, all, 0, &first, None)?;
            got.insert(diff, layer);
            let (digest, config) = rootfs(shelf, diff)?;
            (digest, config, vec![diff], vec![digest])
        }
        Parts::Layers {
            config,
            diffs,
            places,
        } => {
            check(&first, config, diffs, places.len())?;
            let both = diffs.iter().copied().zip(places.iter().copied());
            let both: Vec<(Digest, Place)> = both.collect();
            let image_name = (first.as_str(), image.digest);
            got = unpack_all(shelf, archive, image_name, &both, progress)?;
            for (digest, bytes) in &image.documents {
                shelf.keep_blob(*digest, bytes)?;
            }
            let documents = image.documents.iter().map(|(digest, _)| *digest);
            (
                image.digest,
                (**config).clone(),
                diffs.clone(),
                documents.collect(),
            )
        }
    };
    let mut notes = Vec::new();
    for name in &names {
        if let Some(had) = store.image_named(name)?
            && had.digest != digest
        {
            let (name, before) = (name.familiar(), had.digest);
            progress.happened(Event::Renamed { name, before });
        }
    }
    let layers = publish(shelf, &diffs, got, &mut notes)?;
    shelf.sync_names()?;
    fail::point("image:named");
    let record = ImageRecord {
        digest,
        layers: diffs,
        documents,
        config,
        created_us: now_us(),
        used_us: now_us(),
        names: names.iter().map(Reference::to_string).collect(),
    };
    store.insert_image(&record, &layers)?;
    fail::point("image:recorded");
    for note in notes {
        progress.happened(Event::Noted(note));
    }
    Ok(super::image(shelf, record, &first))
}

fn unpack_all(
    shelf: &Shelf,
    archive: &Archive,
    image: (&str, Digest),
    layers: &[(Digest, Place)],
    progress: &mut dyn Progress,
) -> Result<BTreeMap<Digest, Got>, ImageError> {
    let (name, digest) = image;
    let mut got = BTreeMap::new();
    let mut sizes = Vec::new();
    for (diff, place) in layers {
        sizes.push(LayerSize {
            diff: *diff,
            bytes: place.size,
            here: shelf.record(*diff)?.is_some(),
        });
    }
    progress.happened(Event::Found {
        digest,
        layers: sizes.clone(),
    });
    for (layer, (size, (_, place))) in sizes.iter().zip(layers).enumerate() {
        if size.here || got.contains_key(&size.diff) {
            continue;
        }
        progress.happened(Event::Unpacking { layer });
        let source = archive.section(*place);
        let (diff, done) = unpack_layer(shelf, source, layer, name, Some(size.diff))?;
        got.insert(diff, done);
        progress.happened(Event::Unpacked { layer });
    }
    Ok(got)
}

/// The configuration of an image that has none of its own.
fn rootfs(shelf: &Shelf, diff: Digest) -> Result<(Digest, ImageConfig), ImageError> {
    let config = ImageConfig {
        architecture: architecture().to_owned(),
        os: "linux".to_owned(),
        ..ImageConfig::default()
    };
    let document = serde_json::json!({
        "architecture": config.architecture,
        "os": config.os,
        "config": {},
        "rootfs": { "type": "layers", "diff_ids": [diff] },
    })
    .to_string();
    let digest = digest_of(document.as_bytes());
    shelf.keep_blob(digest, document.as_bytes())?;
    Ok((digest, config))
}

/// A part of the file.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: u64,
    size: u64,
}

#[derive(Clone, Debug)]
enum Member {
    File(Place),
    /// Another member, by its name.
    Link(String),
}

/// The file, uncompressed, and where its members are.
struct Archive {
    path: std::path::PathBuf,
    file: File,
    size: u64,
    members: BTreeMap<String, Member>,
}

impl Archive {
    fn open(shelf: &Shelf, path: &Path) -> Result<Self, ImageError> {
        let failed = |source| ImageError::Access {
            what: "read",
            path: path.to_owned(),
            source,
        };
        let given = File::open(path).map_err(failed)?;
        let mut file = if is_plain(&given).map_err(failed)? {
            given
        } else {
            spool(shelf, given, path)?
        };
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let mut archive = Self {
            path: path.to_owned(),
            size: file.metadata().map_err(failed)?.len(),
            members: BTreeMap::new(),
            file,
        };
        archive.members = archive
            .index()
            .map_err(|error| archive.no_image(with_cause(&error)))?;
        Ok(archive)
    }

    fn no_image(&self, why: String) -> ImageError {
        ImageError::NotAnImage {
            path: self.path.clone(),
            why,
        }
    }

    fn index(&self) -> Result<BTreeMap<String, Member>, TarError> {
        let mut members = BTreeMap::new();
        let mut reader = Reader::new(BufReader::with_capacity(
            128 << 10,
            self.section(Place {
                at: 0,
                size: self.size,
            }),
        ));
        while let Some(entry) = reader.advance()? {
            let Some(name) = plain_name(&entry.path, "") else {
                continue;
            };
            let above = name.rsplit_once('/').map_or("", |(above, _)| above);
            let member = match entry.kind {
                Some(EntryKind::File) if entry.pieces.is_none() => Member::File(Place {
                    at: reader.position(),
                    size: entry.size,
                }),
                Some(EntryKind::Symlink) => match plain_name(&entry.link, above) {
                    Some(target) => Member::Link(target),
                    None => continue,
                },
                Some(EntryKind::HardLink) => match plain_name(&entry.link, "") {
                    Some(target) => Member::Link(target),
                    None => continue,
                },
                _ => continue,
            };
            // BOUND: what is behind the last one is no image's.
            if members.len() as u64 >= BOUNDS.entries {
                break;
            }
            members.insert(name, member);
        }
        Ok(members)
    }

    fn section(&self, place: Place) -> Section<'_> {
        Section {
            file: &self.file,
            at: place.at,
            end: place.at.saturating_add(place.size).min(self.size),
        }
    }

    fn place(&self, name: &str) -> Result<Place, ImageError> {
        let mut name = name.to_owned();
        for _ in 0..LINKS {
            match self.members.get(&name) {
                Some(Member::File(place)) => return Ok(*place),
                Some(Member::Link(target)) => name.clone_from(target),
                None => break,
            }
        }
        let name: String = name.chars().filter(|c| !c.is_control()).take(200).collect();
        Err(self.no_image(format!("it has no `{name}`")))
    }

    /// A small member, whole.
    fn document(&self, name: &str) -> Result<Vec<u8>, ImageError> {
        let place = self.place(name)?;
        if place.size > manifest::BYTES {
            return Err(self.no_image(format!("`{name}` in it is too large")));
        }
        let mut bytes = Vec::new();
        let mut section = self.section(place);
        match section.read_to_end(&mut bytes) {
            Ok(length) if length as u64 == place.size => Ok(bytes),
            Ok(_) => Err(self.no_image("it ends too early".to_owned())),
            Err(source) => Err(ImageError::Access {
                what: "read",
                path: self.path.clone(),
                source,
            }),
        }
    }

    /// A document of a layout, by its digest.
    fn blob(&self, digest: Digest) -> Result<Vec<u8>, ImageError> {
        let bytes = self.document(&blob_name(digest))?;
        let found = digest_of(&bytes);
        if found == digest {
            Ok(bytes)
        } else {
            Err(ImageError::WrongDigest {
                what: "a document",
                reference: self.path.display().to_string(),
                expected: digest,
                found,
            })
        }
    }

    fn images(&self) -> Result<Vec<Inside>, ImageError> {
        if self.members.contains_key("manifest.json")
            && let Ok(saved) =
                serde_json::from_slice::<Vec<Saved>>(&self.document("manifest.json")?)
        {
            if saved.is_empty() || saved.len() > IMAGES {
                return Err(self.no_image(format!("it has {} images", saved.len())));
            }
            return saved.into_iter().map(|one| self.saved(one)).collect();
        }
        if self.members.contains_key("oci-layout") && self.members.contains_key("index.json") {
            return self.layout();
        }
        Ok(vec![Inside {
            digest: Digest::from_bytes([0; 32]),
            names: Vec::new(),
            parts: Parts::RootFs,
            documents: Vec::new(),
        }])
    }

    fn saved(&self, saved: Saved) -> Result<Inside, ImageError> {
        let bytes = self.document(&saved.config)?;
        let digest = digest_of(&bytes);
        let (config, diffs) = config::read(&bytes).map_err(|why| self.no_image(why))?;
        let places = saved
            .layers
            .iter()
            .map(|name| self.place(name))
            .collect::<Result<_, _>>()?;
        let tags = saved.repo_tags.unwrap_or_default();
        Ok(Inside {
            digest,
            names: tags.iter().filter_map(|tag| name_of(tag)).collect(),
            parts: Parts::Layers {
                config: Box::new(config),
                diffs,
                places,
            },
            documents: vec![(digest, bytes)],
        })
    }

    fn layout(&self) -> Result<Vec<Inside>, ImageError> {
        let bytes = self.document("index.json")?;
        let read = manifest::read(&bytes).map_err(|why| self.no_image(why))?;
        let Manifest::Index(listed) = read else {
            return Err(self.no_image("its index is none".to_owned()));
        };
        // One image for several machines is one entry for each of them.
        let of_machines = listed.len() > 1 && listed.iter().all(Descriptor::is_of_machine);
        let chosen: Vec<&Descriptor> = if of_machines {
            vec![self.choose(&listed)?]
        } else {
            listed.iter().take(IMAGES).collect()
        };
        chosen.into_iter().map(|one| self.of_layout(one)).collect()
    }

    fn choose<'d>(&self, listed: &'d [Descriptor]) -> Result<&'d Descriptor, ImageError> {
        manifest::choose(listed)
            .map_err(|made_for| wrong_machine(&self.path.display().to_string(), &made_for))
    }

    fn of_layout(&self, descriptor: &Descriptor) -> Result<Inside, ImageError> {
        let annotations = descriptor.annotations.clone().unwrap_or_default();
        let named = NAMES.iter().find_map(|key| annotations.get(*key));
        let mut digest = descriptor.digest;
        let mut documents = Vec::new();
        // An index may stand for the image; there is no third.
        for _ in 0..2 {
            let bytes = self.blob(digest)?;
            let read = manifest::read(&bytes).map_err(|why| self.no_image(why))?;
            documents.push((digest, bytes));
            match read {
                Manifest::Index(listed) => digest = self.choose(&listed)?.digest,
                Manifest::Image { config, layers } => {
                    let bytes = self.blob(config.digest)?;
                    let (read, diffs) = config::read(&bytes).map_err(|why| self.no_image(why))?;
                    documents.push((config.digest, bytes));
                    let places = layers
                        .iter()
                        .map(|layer| self.place(&blob_name(layer.digest)))
                        .collect::<Result<_, _>>()?;
                    return Ok(Inside {
                        digest,
                        names: named.and_then(|name| name_of(name)).into_iter().collect(),
                        parts: Parts::Layers {
                            config: Box::new(read),
                            diffs,
                            places,
                        },
                        documents,
                    });
                }
            }
        }
        Err(self.no_image("its index names only other indexes".to_owned()))
    }
}

/// An image as `docker save` lists it.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// What an archive calls its image.
///
/// HOSTILE: `NAME@DIGEST` is what somebody pins, and a file cannot say that it is that.
fn name_of(text: &str) -> Option<Reference> {
    let name: Reference = text.parse().ok()?;
    name.digest().is_none().then_some(name)
}

fn blob_name(digest: Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// The name of a member, seen from `above`; `None` where it is none that an image would have.
fn plain_name(name: &[u8], above: &str) -> Option<String> {
    let name = std::str::from_utf8(name).ok()?;
    let mut parts: Vec<&str> = above.split('/').filter(|part| !part.is_empty()).collect();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    (!parts.is_empty() && !name.starts_with('/')).then(|| parts.join("/"))
}

/// Whether a file can be read at any place of it, as it is.
fn is_plain(file: &File) -> io::Result<bool> {
    if !file.metadata()?.is_file() {
        return Ok(false);
    }
    let mut magic = [0; 4];
    let length = file.read_at(&mut magic, 0)?;
    Ok(!matches!(
        &magic[..length],
        [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd]
    ))
}

/// A file without a name that has all that a pipe or a compressed file has.
fn spool(shelf: &Shelf, given: File, path: &Path) -> Result<File, ImageError> {
    let spool = shelf
        .partials()
        .join(format!("{MAKING}{}", LayerId::random()?));
    let failed = |source| ImageError::Access {
        what: "unpack",
        path: path.to_owned(),
        source,
    };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = rustix::fs::open(&spool, flags, Mode::RUSR | Mode::WUSR)
        .map(File::from)
        .map_err(|errno| failed(errno.into()))?;
    std::fs::remove_file(&spool).map_err(failed)?;
    let mut decoded = Decoded::new(given, BOUNDS).map_err(failed)?;
    io::copy(&mut decoded, &mut file).map_err(failed)?;
    Ok(file)
}

fn with_cause(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

#[derive(Debug)]
struct Section<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.end.saturating_sub(self.at);
        let most = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let length = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += length as u64;
        Ok(length)
    }
}
