//! Images that are used are not removed, and of those that are removed nothing stays.

use std::path::Path;

use serde_json::json;

use super::*;
use crate::error::ErrorKind;
use crate::store::EnvironmentRecord;

struct Quiet;

impl Progress for Quiet {
    fn happened(&mut self, _: Event) {}
}

struct Scene {
    directory: tempfile::TempDir,
    home: Home,
    store: Store,
}

impl Scene {
    fn set() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(Some(directory.path().join("home"))).unwrap();
        let store = Store::open(&home).unwrap();
        Self {
            directory,
            home,
            store,
        }
    }

    /// An image of one file.
    fn import(&self, name: &str, content: &[u8]) -> Image {
        let file = self.directory.path().join("rootfs.tar");
        let mut tar = unpack::tests::header(b'0', b"file", content.len() as u64, b"");
        tar.extend_from_slice(content);
        tar.resize(tar.len().next_multiple_of(512) + 1024, 0);
        std::fs::write(&file, tar).unwrap();
        let mut images = import(&self.home, &self.store, &file, Some(name), &mut Quiet).unwrap();
        assert_eq!(images.len(), 1);
        images.remove(0)
    }

    /// Files and directories of the shelf, without locks.
    fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        for directory in ["layers", "blobs", "partial", "uses"] {
            for entry in std::fs::read_dir(self.home.images().join(directory)).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                if !name.ends_with(".lock") {
                    left.push(format!("{directory}/{name}"));
                }
            }
        }
        left
    }
}

#[test]
fn an_image_that_is_used_stays_until_it_is_not() {
    let scene = Scene::set();
    let (home, store) = (&scene.home, &scene.store);
    let image = scene.import("a", b"content");
    assert_eq!(find(home, store, "a").unwrap().layers, image.layers);
    let content = std::fs::read(image.layers[0].join("file")).unwrap();
    assert_eq!(content, b"content");

    let held = hold(home, store, &image).unwrap();
    let also = hold(home, store, &image).unwrap();
    let refused = |why: &str| {
        let error = remove(home, store, "a").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.to_string().contains(why), "{error}");
        assert!(find(home, store, "a").is_ok());
        assert!(leftovers(home, store).unwrap().is_empty());
    };
    refused("something runs on it");
    drop(held);
    refused("something runs on it");
    drop(also);

    let digest = image.digest.parse().unwrap();
    let environment = EnvironmentRecord {
        key: "0123456789abcdef".to_owned(),
        scope: String::new(),
        created_us: 0,
        used_us: 0,
        bytes: 0,
        detail: serde_json::from_value(json!({ "inputs": { "image": image.digest } })).unwrap(),
    };
    store.insert_environment(&environment).unwrap();
    refused("environment 0123456789ab");
    assert!(store.remove_environment(&environment.key).unwrap());

    assert_eq!(remove(home, store, "a").unwrap(), Removed::All);
    assert!(scene.left().is_empty(), "{:?}", scene.left());
    assert!(find(home, store, "a").is_err());
    let error = hold(home, store, &image).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(store.image_layer(digest).unwrap().is_none());
}

#[test]
fn layers_are_shared_and_go_with_the_last_image() {
    let scene = Scene::set();
    let (home, store) = (&scene.home, &scene.store);
    let one = scene.import("one", b"same");
    let two = scene.import("two", b"same");
    let other = scene.import("other", b"different");
    assert_eq!(one.digest, two.digest);
    assert_ne!(one.digest, other.digest);
    assert_eq!(all(store).unwrap().len(), 2);
    assert_eq!(remove(home, store, "one").unwrap(), Removed::NameOnly);
    assert!(find(home, store, "two").is_ok());
    // By its digest an image goes with all its names; its first digits are enough.
    let digits = &two.digest["sha256:".len()..][..12];
    assert_eq!(remove(home, store, digits).unwrap(), Removed::All);
    assert_eq!(scene.left().len(), 3, "{:?}", scene.left());
    assert!(Path::new(&other.layers[0]).exists());
    assert!(
        verify(home, store, "other").unwrap()[0]
            .differences
            .is_empty()
    );
}

#[test]
fn while_an_image_is_added_nothing_is_swept() {
    let scene = Scene::set();
    let (home, store) = (&scene.home, &scene.store);
    let shelf = Shelf::open(home).unwrap();
    std::fs::write(shelf.partials().join("half"), b"a blob").unwrap();
    let adding = shelf.share(|| ()).unwrap();
    assert!(leftovers(home, store).unwrap().is_empty());
    drop(adding);
    let left = leftovers(home, store).unwrap();
    assert_eq!(left.len(), 1);
    let adding = shelf.share(|| ()).unwrap();
    remove_leftover(home, store, &left[0]).unwrap();
    assert_eq!(scene.left(), ["partial/half"]);
    drop(adding);
    remove_leftover(home, store, &left[0]).unwrap();
    assert!(scene.left().is_empty());

    scene.import("a", b"content");
    let adding = shelf.share(|| ()).unwrap();
    assert_eq!(remove(home, store, "a").unwrap(), Removed::LayersLater);
    assert!(find(home, store, "a").is_err() && !scene.left().is_empty());
    // Whoever adds it now has its layer still, and keeps it.
    drop(adding);
    scene.import("b", b"content");
    assert!(leftovers(home, store).unwrap().is_empty());
    assert!(verify(home, store, "b").unwrap()[0].differences.is_empty());
}
