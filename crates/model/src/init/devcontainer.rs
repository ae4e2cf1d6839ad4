//! `devcontainer.json`: what of it a sandbox can be, and by name what it cannot.
//!
//! HOSTILE: the file is written for tools that run its commands on the host and mount what it
//! names. Here nothing of it reaches the host: commands become the setup, which runs in a sandbox;
//! variables of the host are not put in; mounts of the host are only shown to the user.

use serde_json::{Map, Value};

use super::{
    Area, AskedMount, Files, Proposed, Said, add, dockerfile, image_of, is_plain_path, join, jsonc,
    plain, split, text,
};

/// Where the file is, the strongest first.
pub const PLACES: &[&str] = &[".devcontainer/devcontainer.json", ".devcontainer.json"];

/// Where the folder is inside.
const WORKSPACE: &str = "/workspace";

/// Commands that prepare a container, in the order in which they run.
const SETUPS: [&str; 3] = [
    "onCreateCommand",
    "updateContentCommand",
    "postCreateCommand",
];

/// Keys that change nothing inside.
const SILENT: &[&str] = &["$schema", "name", "init", "updateRemoteUserUID", "waitFor"];

/// Keys that are not supported, and what to do instead.
const NAMED: &[(&str, &str)] = &[
    (
        "features",
        "install what they bring in `setup`, or use an image that has it",
    ),
    ("overrideFeatureInstallOrder", "there are no features"),
    (
        "forwardPorts",
        "nothing of a sandbox can be reached from outside",
    ),
    (
        "appPort",
        "nothing of a sandbox can be reached from outside",
    ),
    (
        "portsAttributes",
        "nothing of a sandbox can be reached from outside",
    ),
    (
        "otherPortsAttributes",
        "nothing of a sandbox can be reached from outside",
    ),
    (
        "runArgs",
        "options of another program; limits and rules are in your policy",
    ),
    ("privileged", "no sandbox ever is"),
    (
        "capAdd",
        "an agent never has a capability; a setup may be root of its own image",
    ),
    (
        "securityOpt",
        "the walls of a sandbox are not for a repository to lower",
    ),
    (
        "initializeCommand",
        "it would run on your machine; it never does",
    ),
    (
        "postStartCommand",
        "start it yourself, as a part of the command",
    ),
    (
        "postAttachCommand",
        "start it yourself, as a part of the command",
    ),
    (
        "dockerComposeFile",
        "a sandbox is one container; build its image and import that",
    ),
    ("service", "a sandbox is one container"),
    ("runServices", "a sandbox is one container"),
    (
        "workspaceMount",
        "the folder is always at /workspace, copy-on-write",
    ),
    (
        "remoteUser",
        "the agent is always `agent`, without any rights",
    ),
    (
        "containerUser",
        "the agent is always `agent`, without any rights",
    ),
    ("userEnvProbe", "no shell is asked for variables"),
    ("overrideCommand", "the command is what you run"),
    ("shutdownAction", "nothing is left running"),
    ("customizations", "settings of editors"),
    ("extensions", "settings of editors"),
    ("settings", "settings of editors"),
    ("hostRequirements", "set limits in your policy: `[limits]`"),
    ("secrets", "bind them in your policy: `[secrets.NAME]`"),
];

/// Directories of package managers, by the end of their path, and the cache that stands for them.
const CACHES: &[(&str, &str)] = &[
    ("/.cache/pip", "pip"),
    ("/.cache/uv", "uv"),
    ("/.npm", "npm"),
    ("/.local/share/pnpm/store", "pnpm"),
    ("/.pnpm-store", "pnpm"),
    ("/.cache/yarn", "yarn"),
    ("/.yarn/berry", "yarn"),
    ("/.bun/install/cache", "bun"),
    ("/.cargo/registry", "cargo"),
    ("/cargo/registry", "cargo"),
    ("/go/pkg/mod", "go"),
    ("/.cache/go-build", "go"),
    ("/.ccache", "ccache"),
    ("/.cache/ccache", "ccache"),
    ("/.cache/sccache", "sccache"),
];

/// Takes over what the folder's file says.
pub(super) fn take(own: &mut Proposed, files: &Files) {
    let Some(place) = PLACES.iter().find(|place| files.contains_key(**place)) else {
        return;
    };
    let Some(content) = text(files, place) else {
        own.leave_out(place, "it is no text", "nothing is taken from it");
        return;
    };
    match jsonc::parse(content) {
        Ok(Value::Object(table)) => Reader { own, files, place }.read(&table),
        Ok(_) => own.leave_out(place, "it is no JSON object", "nothing is taken from it"),
        Err(error) => {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            let what = format!("{error}: {}", cause.unwrap_or_default());
            own.leave_out(place, &what, "nothing is taken from it");
        }
    }
}

/// One file alone, without the folder around it.
pub fn read(bytes: &[u8]) -> Proposed {
    let mut files = Files::new();
    files.insert(PLACES[0].to_owned(), super::Seen::Bytes(bytes.to_vec()));
    let mut own = Proposed::default();
    take(&mut own, &files);
    own
}

struct Reader<'a> {
    own: &'a mut Proposed,
    files: &'a Files,
    place: &'a str,
}

/// Why a text with variables in it cannot be taken over.
enum Unfilled {
    /// A variable of the host.
    Host(String),
    Other,
}

impl Reader<'_> {
    fn read(mut self, table: &Map<String, Value>) {
        for (key, value) in table {
            match key.as_str() {
                "image" => self.image(value),
                "build" => self.build(value),
                "dockerFile" => self.dockerfile(value, None, table.get("context")),
                "context" if table.contains_key("dockerFile") => {}
                "containerEnv" | "remoteEnv" => self.variables(key, value),
                "mounts" => self.mounts(value),
                "workspaceFolder" => {
                    if value.as_str() != Some(WORKSPACE) {
                        self.leave_out(key, "the folder is always at /workspace");
                    }
                }
                key if SETUPS.contains(&key) || SILENT.contains(&key) => {}
                key => {
                    let known = NAMED.iter().find(|(name, _)| *name == key);
                    let is_off = matches!(value, Value::Null | Value::Bool(false));
                    if !is_off {
                        self.leave_out(key, known.map_or("it is not known here", |(_, why)| why));
                    }
                }
            }
        }
        for key in SETUPS {
            if let Some(value) = table.get(key) {
                self.commands(key, value);
            }
        }
    }

    fn leave_out(&mut self, key: &str, instead: &str) {
        let what = match plain(key).filter(|key| key.len() <= 80) {
            Some(key) => format!("`{key}`"),
            None => "a key that is not plain".to_owned(),
        };
        self.own.leave_out(self.place, &what, instead);
    }

    fn image(&mut self, value: &Value) {
        match value.as_str().and_then(image_of) {
            None => self.leave_out("image", "it is not the name of an image"),
            Some(image) => {
                self.own.image = Some(Said {
                    value: image.to_owned(),
                    why: self.place.to_owned(),
                });
            }
        }
    }

    fn build(&mut self, value: &Value) {
        let Some(table) = value.as_object() else {
            return self.leave_out("build", "it is no table");
        };
        match table.get("dockerfile") {
            Some(file) => self.dockerfile(file, table.get("target"), table.get("context")),
            None => self.leave_out("build", "it names no `dockerfile`"),
        }
        for key in ["args", "cacheFrom", "options"] {
            if table.contains_key(key) {
                self.leave_out(
                    &format!("build.{key}"),
                    "give it to `docker build` yourself",
                );
            }
        }
    }

    /// An image that is built elsewhere: the words for that, and meanwhile what it is built on.
    fn dockerfile(&mut self, file: &Value, target: Option<&Value>, context: Option<&Value>) {
        let folder = split(self.place).0;
        let below = |value: Option<&Value>, default: &str| {
            let said = value.and_then(Value::as_str).unwrap_or(default);
            below(folder, said)
        };
        let target = target
            .and_then(Value::as_str)
            .filter(|target| is_plain_path(target));
        let (Some(path), Some(context)) = (below(Some(file), ""), below(context, ".")) else {
            return self.leave_out("build", "its paths leave the folder, or are not plain");
        };
        let context = if context.is_empty() { "." } else { &context };
        dockerfile::build(self.own, &path, target, context);
        if self.own.image.is_none() {
            dockerfile::read(self.own, self.files, &path);
        }
    }

    fn variables(&mut self, key: &str, value: &Value) {
        let Some(table) = value.as_object() else {
            return self.leave_out(key, "it is no table");
        };
        for (name, value) in table {
            let shown = format!("{key}.{name}");
            let Some(value) = value.as_str() else {
                // `null` takes a variable away, and there is none.
                if !value.is_null() {
                    self.leave_out(&shown, "it is no text");
                }
                continue;
            };
            if !is_variable(name) {
                self.leave_out(&shown, "it is not the name of a variable");
                continue;
            }
            match filled(value) {
                Ok(value) if value.is_empty() || plain(&value).is_some() => {
                    let why = self.place.to_owned();
                    self.own.env.insert(name.clone(), Said { value, why });
                }
                Ok(_) => self.leave_out(&shown, "it has characters that are not shown as they are"),
                Err(Unfilled::Host(host)) => {
                    let instead = format!(
                        "a variable of your machine: grant it in your policy, `[env] pass = [{}]`",
                        super::quoted(&host)
                    );
                    self.leave_out(&shown, &instead);
                }
                Err(Unfilled::Other) => {
                    self.leave_out(&shown, "it is made of something that is not known here");
                }
            }
        }
    }

    fn commands(&mut self, key: &str, value: &Value) {
        let mut found: Vec<(String, &Value)> = Vec::new();
        match value {
            // They may run at the same time; one after the other is the same to who waits for all.
            Value::Object(table) => {
                let named = table
                    .iter()
                    .map(|(name, value)| (format!("{key}.{name}"), value));
                found.extend(named.take(super::MAX_STEPS));
            }
            value => found.push((key.to_owned(), value)),
        }
        for (shown, value) in found {
            let command = match value {
                Value::String(line) => Some(line.trim().to_owned()),
                Value::Array(words) => {
                    let words: Option<Vec<String>> = words
                        .iter()
                        .map(|word| word.as_str().map(word_of_shell))
                        .collect();
                    words.map(|words| words.join(" "))
                }
                _ => None,
            };
            let command = command.and_then(|command| filled(&command).ok());
            let Some(command) = command.filter(|command| !command.is_empty()) else {
                self.leave_out(
                    &shown,
                    "it is no command, or has variables of your machine in it",
                );
                continue;
            };
            if plain(&command).is_none() {
                let instead = "it has several lines or characters that are not shown as they are: \
                               put it into a script of the repository";
                self.leave_out(&shown, instead);
                continue;
            }
            if command.split_whitespace().any(|word| word == "sudo") {
                let instead = "there is no `sudo` inside: with an image, `root = true` in your own \
                               policy's `[environment]` makes the setup root of it";
                self.leave_out(&format!("sudo in {shown}"), instead);
            }
            // What a shell would take apart when more follows stays together.
            let is_simple = !command.replace("&&", "").contains([';', '|', '&', '#']);
            self.own.setup.push(Said {
                value: if is_simple || matches!(value, Value::Array(_)) {
                    command
                } else {
                    format!("sh -c {}", word_of_shell(&command))
                },
                why: format!("{}, {key}", self.place),
            });
        }
    }

    fn mounts(&mut self, value: &Value) {
        for item in value
            .as_array()
            .into_iter()
            .flatten()
            .take(super::MAX_NOTES)
        {
            let Some(mount) = mount(item) else {
                self.leave_out("mounts", "one of them is no mount");
                continue;
            };
            self.mount(&mount);
        }
    }

    fn mount(&mut self, mount: &Mount) {
        let target = filled(&mount.target).ok();
        let Some(target) = target.filter(|path| is_place(path)) else {
            return self.leave_out(
                "mounts",
                "the target of one of them is no plain absolute path",
            );
        };
        let why = format!("{}, mounts", self.place);
        if target == WORKSPACE || target.starts_with("/workspace/") {
            let shown = format!("mounts: {target}");
            return self.leave_out(&shown, "the workspace is a layer of its own already");
        }
        let cache = CACHES.iter().find(|(end, _)| target.ends_with(end));
        match (mount.kind.as_str(), cache) {
            ("volume", Some((_, cache))) => add(&mut self.own.cache, cache, &why),
            ("volume" | "tmpfs", _) => {
                if !self.own.scratch.iter().any(|area| area.inside == target) {
                    self.own.scratch.push(Area {
                        inside: target,
                        size: "512M".to_owned(),
                        why,
                    });
                }
            }
            ("bind", _) => {
                let shown = format!("mounts: {target}");
                let source = filled(&mount.source).ok().filter(|path| is_place(path));
                match source {
                    Some(source) if source.ends_with(".sock") => {
                        self.leave_out(&shown, "a socket of your machine is never shown inside");
                    }
                    Some(host) if host != WORKSPACE && !host.starts_with("/workspace/") => {
                        self.leave_out(&shown, "a path of your machine: only you can grant it");
                        self.own.mounts.push(AskedMount {
                            host,
                            inside: target,
                            why,
                        });
                    }
                    _ => self.leave_out(&shown, "its source depends on your machine"),
                }
            }
            _ => self.leave_out(&format!("mounts: {target}"), "this type is not known here"),
        }
    }
}

/// A mount as it is written.
struct Mount {
    kind: String,
    source: String,
    target: String,
}

/// `type=…,source=…,target=…`, or the same as a table.
fn mount(item: &Value) -> Option<Mount> {
    let get = |names: &[&str]| -> Option<String> {
        match item {
            Value::String(line) => line.split(',').find_map(|part| {
                let (name, value) = part.split_once('=')?;
                names
                    .contains(&name.trim())
                    .then(|| value.trim().to_owned())
            }),
            Value::Object(table) => {
                let mut found = names.iter().filter_map(|name| table.get(*name)?.as_str());
                found.next().map(str::to_owned)
            }
            _ => None,
        }
    };
    Some(Mount {
        // What `docker run --mount` does where it is not said.
        kind: get(&["type"]).unwrap_or_else(|| "volume".to_owned()),
        source: get(&["source", "src"]).unwrap_or_default(),
        target: get(&["target", "destination", "dst"])?,
    })
}

/// A text with its variables put in.
fn filled(text: &str) -> Result<String, Unfilled> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        out.push_str(&rest[..at]);
        let (name, left) = rest[at + 2..].split_once('}').ok_or(Unfilled::Other)?;
        match name {
            "containerWorkspaceFolder" => out.push_str(WORKSPACE),
            "containerWorkspaceFolderBasename" => out.push_str("workspace"),
            name => match name.split_once(':') {
                Some(("localEnv" | "env", variable)) => {
                    let variable = variable.split(':').next().unwrap_or_default();
                    return Err(if is_variable(variable) {
                        Unfilled::Host(variable.to_owned())
                    } else {
                        Unfilled::Other
                    });
                }
                // A plain variable of a shell.
                None if is_variable(name) && !name.starts_with("local") => {
                    out.push_str(&format!("${{{name}}}"));
                }
                _ => return Err(Unfilled::Other),
            },
        }
        rest = left;
    }
    out.push_str(rest);
    Ok(out)
}

fn is_variable(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let first = name
        .bytes()
        .next()
        .is_some_and(|byte| !byte.is_ascii_digit());
    first && name.len() <= 256 && name.bytes().all(plain)
}

/// An absolute path of plain names.
fn is_place(path: &str) -> bool {
    path.strip_prefix('/').is_some_and(is_plain_path)
}

/// A path that a file names, as one below the folder; `None` where it leaves that.
fn below(folder: &str, said: &str) -> Option<String> {
    let mut path = folder.to_owned();
    for name in said.split('/') {
        match name {
            "" | "." => {}
            ".." if path.is_empty() => return None,
            ".." => path = split(&path).0.to_owned(),
            name => path = join(&path, name),
        }
    }
    let is_inside = !said.starts_with('/') && (path.is_empty() || is_plain_path(&path));
    is_inside.then_some(path)
}

/// A word that a shell takes as it is.
fn word_of_shell(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}
