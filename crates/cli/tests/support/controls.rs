//! Control runs: the same attack without the sandbox, where it must work.
//!
//! An attack that fails everywhere shows nothing. Most controls run as root on a throw-away view
//! of the machine: a copy-on-write `/` in a mount, pid, uts and ipc namespace of its own, with
//! every capability and no filter. Nothing they write reaches the machine.

/// Where an attack is shown to work.
#[derive(Clone, Copy, Debug)]
pub enum Control {
    /// The throw-away view, after these shell words. Exit 77 means that this machine lacks what
    /// the attack needs.
    Bare(&'static str),
    /// The host itself, in the folder: for what only reads, and needs the host's own processes.
    Host,
    /// The throw-away view, on a terminal.
    Terminal,
    /// Not run outside, for this reason.
    NotOutside(&'static str),
}

use Control::{Bare, Host, NotOutside, Terminal};

/// Whatever is not listed is `Bare("")`.
const CONTROLS: &[(&str, Control)] = &[
    (
        "env-005",
        Bare("mkdir -p /run/podman; touch /run/podman/podman.sock"),
    ),
    (
        "env-007",
        Bare("mkdir -p /tmp/.X11-unix; touch /tmp/.X11-unix/X0"),
    ),
    (
        "env-010",
        Bare("mkdir /h; echo x > /h/.npmrc; export HOME=/h"),
    ),
    ("env-101", Host),
    (
        "env-102",
        NotOutside("the state directory is only in the arguments of a broken launcher"),
    ),
    ("env-104", Host),
    ("env-105", Host),
    ("fs-003", Bare("mkdir -p /srv; touch /srv/x")),
    ("fs-016", Bare("rm -f /.dockerenv")),
    ("fs-030", NotOutside("changes a setting of the machine")),
    (
        "fs-031",
        NotOutside("could move a controller of the machine"),
    ),
    ("fs-032", NotOutside("changes a setting of the machine")),
    (
        "fs-048",
        Bare("mount --bind /usr /usr; mount -o remount,bind,ro /usr"),
    ),
    ("fs-101", Host),
    (
        "fs-102",
        NotOutside("there is no state before the first run"),
    ),
    ("fs-103", Host),
    ("fs-104", Host),
    ("fs-105", Bare("cd /root && touch x")),
    ("fs-106", Bare("cd /home && mkdir -p x")),
    ("fs-108", Bare("touch /run/x")),
    ("fs-109", Bare("mkdir -p /srv; touch /srv/x")),
    (
        "fs-114",
        Bare("echo x > /s; mkdir -p \"$(dirname $SECRET)\"; ln -sfn /s $SECRET"),
    ),
    (
        "fs-115",
        Bare("mkdir -p \"$(dirname $SECRET)\"; echo x > $SECRET"),
    ),
    ("fs-116", Host),
    ("fs-119", Bare("test -e /proc/sysrq-trigger || exit 77")),
    ("fs-123", Host),
    ("fs-130", Host),
    ("fs-131", Host),
    ("git-111", Host),
    (
        "git-113",
        NotOutside("the fixture has no alternates outside"),
    ),
    ("info-002", Bare("echo x > /etc/machine-id")),
    (
        "info-005",
        Bare("test \"$(wc -l < /proc/net/route)\" -gt 1 || exit 77"),
    ),
    ("info-101", Host),
    (
        "info-102",
        Bare("echo x:x:1234:1234::/:/bin/sh >> /etc/passwd"),
    ),
    (
        "info-103",
        NotOutside("only a mount of the sandbox could name these paths"),
    ),
    (
        "info-105",
        Bare("grep -qv ':/$' /proc/self/cgroup || exit 77"),
    ),
    ("info-106", Bare("echo x >> /etc/environment")),
    (
        "kern-004",
        NotOutside(
            "the empty event is refused on machines without counters; kern-121 has a valid one",
        ),
    ),
    (
        "kern-010",
        NotOutside("as written it is refused everywhere; kern-126 looks at the error"),
    ),
    ("kern-011", NotOutside("changes a setting of the machine")),
    (
        "kern-018",
        NotOutside("as written it is refused everywhere; proc-129 looks at the error"),
    ),
    (
        "kern-019",
        NotOutside("as written it is refused everywhere; kern-122 has a valid filter"),
    ),
    (
        "kern-022",
        NotOutside("as written it is refused everywhere; kern-133 looks at the error"),
    ),
    (
        "kern-025",
        NotOutside("as written it is refused everywhere"),
    ),
    ("kern-026", NotOutside("the kernel has been mended")),
    ("kern-027", Bare("grep -q . /proc/keys || exit 77")),
    ("kern-029", NotOutside("changes a setting of the machine")),
    ("kern-125", NotOutside("a kernel may be built without it")),
    ("kern-126", NotOutside("a kernel may be built without it")),
    ("kern-127", NotOutside("a kernel may be built without it")),
    ("kern-128", NotOutside("a kernel may be built without it")),
    (
        "kern-134",
        NotOutside("hangs up the terminal of whoever runs the tests"),
    ),
    ("kern-137", NotOutside("older kernels do not have the call")),
    (
        "kern-142",
        NotOutside("a kernel may be built without 32-bit calls"),
    ),
    (
        "kern-143",
        NotOutside("a kernel may be built without 32-bit calls"),
    ),
    ("kern-144", NotOutside("most kernels do not have x32 calls")),
    ("kern-145", NotOutside("most kernels do not have x32 calls")),
    (
        "proc-005",
        NotOutside("the kernel keeps such signals from every pid 1"),
    ),
    ("proc-009", NotOutside("fills the machine with processes")),
    ("proc-010", NotOutside("fills the machine with threads")),
    ("proc-014", NotOutside("`timeout` makes it fail everywhere")),
    ("proc-016", NotOutside("fills the disk")),
    (
        "proc-017",
        NotOutside("the bound of the machine may be as low"),
    ),
    ("proc-018", NotOutside("beyond the bound of every kernel")),
    (
        "proc-020",
        Bare("test \"$(cat /proc/sys/kernel/core_pattern)\" = core || exit 77"),
    ),
    ("proc-023", NotOutside("schedules a job on the machine")),
    (
        "proc-120",
        NotOutside("pid 1 of the throw-away view leads no group"),
    ),
    ("proc-139", Host),
    ("tty-001", Terminal),
    (
        "tty-004",
        NotOutside("only a session leader may ask for a terminal"),
    ),
    ("tty-005", Terminal),
];

pub fn control(id: &str) -> Control {
    CONTROLS
        .iter()
        .find(|(name, _)| *name == id)
        .map_or(Bare(""), |(_, control)| *control)
}

/// Ids that have an entry, to find those whose case is gone.
pub fn ids() -> impl Iterator<Item = &'static str> {
    CONTROLS.iter().map(|(id, _)| *id)
}

/// Cases without a control run, with the reason.
pub fn not_outside() -> impl Iterator<Item = (&'static str, &'static str)> {
    CONTROLS.iter().filter_map(|(id, control)| match control {
        NotOutside(reason) => Some((*id, *reason)),
        _ => None,
    })
}

/// Host canaries that a careless `git` on the host does set off; the others need more than
/// these commands.
pub const CARELESS_GIT_RUNS: &[&str] = &[
    "git-003", "git-005", "git-006", "git-007", "git-012", "git-030", "git-101", "git-102",
    "git-103", "git-104", "git-114", "git-115", "git-116",
];

/// What a careless host would do with a folder that an agent wrote.
pub const CARELESS_GIT: &str = "cd /workspace; for words in status diff 'add -A' 'log -p -1' '-C docs status'; \
    do timeout 5 git $words </dev/null >/dev/null 2>&1; done; test -e /tmp/CANARY-host";

/// Printed when the throw-away view stands and the attack begins.
pub const READY: &str = "control: ready";

/// `sh -c BARE sh SCRATCH FOLDER PREPARE COMMAND`, within fresh namespaces.
pub const BARE: &str = r#"
set -e
scratch=$1 folder=$2 prepare=$3 command=$4
mount -t tmpfs none "$scratch"
mkdir "$scratch/upper" "$scratch/work" "$scratch/root"
mount -t overlay none -o "lowerdir=/,upperdir=$scratch/upper,workdir=$scratch/work" "$scratch/root"
cd "$scratch/root"
mkdir -p workspace .old proc dev sys tmp run
cp -a "$folder/." workspace/
chown -R 0:0 workspace
mount -t proc proc proc
mount --rbind /dev dev
mount --rbind /sys sys
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t tmpfs none tmp
chmod 1777 tmp
touch tmp/of-the-host
pivot_root . .old
umount -l /.old
cd /workspace
eval "$prepare"
echo 'control: ready'
set +e
sh -c "$command"
"#;
