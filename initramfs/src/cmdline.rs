//! The agent's settings, from the kernel command line.
//!
//! ```text
//! hayfork.carrier=virtio-serial:NAME | vsock:PORT   how the host is reached (needed)
//! hayfork.root=/dev/vda                             block device with the root image
//! hayfork.linger=SECONDS                            power off this long after the host went away; 0 = never
//! ```
//! Unknown `hayfork.` settings are an error, so that a newer host with an older image fails clearly at boot.

use std::time::Duration;

/// Where the byte stream to the host comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CarrierKind {
    /// The virtio-serial port with this name.
    VirtioSerial(String),
    /// An AF_VSOCK listener on this port.
    Vsock(u32),
}

/// Everything the host says on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// How the host is reached.
    pub carrier: CarrierKind,
    /// Block device that holds the root image.
    pub root: String,
    /// How long to live without a host; `None` = for ever.
    pub linger: Option<Duration>,
}

/// What is wrong with the command line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CmdlineError {
    /// No carrier was named.
    #[error(
        "the kernel command line names no carrier: add hayfork.carrier=virtio-serial:NAME or hayfork.carrier=vsock:PORT"
    )]
    NoCarrier,
    /// A setting that this agent does not know.
    #[error(
        "the kernel command line has the unknown setting {0:?}: host and image are of different versions"
    )]
    Unknown(String),
    /// A value that does not parse.
    #[error("the kernel command line has {0:?}: {1}")]
    Invalid(String, &'static str),
}

impl Settings {
    /// Parses the text of `/proc/cmdline`. Words that do not start with `hayfork.` are the kernel's and skipped.
    ///
    /// # Errors
    /// A missing carrier, an unknown `hayfork.` word or a value that does not parse.
    pub fn parse(cmdline: &str) -> Result<Self, CmdlineError> {
        let mut carrier = None;
        let mut root = "/dev/vda".to_owned();
        let mut linger = None;
        for word in cmdline.split_ascii_whitespace() {
            let Some(setting) = word.strip_prefix("hayfork.") else {
                continue;
            };
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            let invalid = |why| CmdlineError::Invalid(word.to_owned(), why);
            match name {
                "carrier" => {
                    carrier = Some(
                        parse_carrier(value)
                            .ok_or_else(|| invalid("want virtio-serial:NAME or vsock:PORT"))?,
                    );
                }
                "root" if value.starts_with("/dev/") => value.clone_into(&mut root),
                "root" => return Err(invalid("want the path of a block device in /dev")),
                "linger" => {
                    let seconds: u64 = value.parse().map_err(|_| invalid("want whole seconds"))?;
                    linger = (seconds > 0).then(|| Duration::from_secs(seconds));
                }
                _ => return Err(CmdlineError::Unknown(word.to_owned())),
            }
        }
        Ok(Self { carrier: carrier.ok_or(CmdlineError::NoCarrier)?, root, linger })
    }
}

fn parse_carrier(value: &str) -> Option<CarrierKind> {
    match value.split_once(':')? {
        ("virtio-serial", name) if !name.is_empty() => Some(CarrierKind::VirtioSerial(name.to_owned())),
        ("vsock", port) => port.parse().ok().map(CarrierKind::Vsock),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_full_line_among_the_kernels_own_words() {
        let settings = Settings::parse(
            "console=ttyS0 quiet panic=-1 hayfork.carrier=virtio-serial:org.hayfork.agent hayfork.root=/dev/vdb hayfork.linger=30\n",
        )
        .unwrap();
        assert_eq!(
            settings,
            Settings {
                carrier: CarrierKind::VirtioSerial("org.hayfork.agent".into()),
                root: "/dev/vdb".into(),
                linger: Some(Duration::from_secs(30)),
            }
        );
    }

    #[test]
    fn defaults_are_vda_and_no_linger() {
        let settings = Settings::parse("hayfork.carrier=vsock:1024 hayfork.linger=0").unwrap();
        assert_eq!(settings.carrier, CarrierKind::Vsock(1024));
        assert_eq!(settings.root, "/dev/vda");
        assert_eq!(settings.linger, None);
    }

    #[test]
    fn says_what_is_wrong() {
        assert_eq!(Settings::parse("quiet"), Err(CmdlineError::NoCarrier));
        assert!(matches!(Settings::parse("hayfork.carrier=vsock:x"), Err(CmdlineError::Invalid(..))));
        assert!(matches!(Settings::parse("hayfork.carrier=virtio-serial:"), Err(CmdlineError::Invalid(..))));
        assert!(matches!(
            Settings::parse("hayfork.carrier=vsock:1 hayfork.root=vda"),
            Err(CmdlineError::Invalid(..))
        ));
        assert!(matches!(
            Settings::parse("hayfork.carrier=vsock:1 hayfork.linger=-1"),
            Err(CmdlineError::Invalid(..))
        ));
        assert_eq!(
            Settings::parse("hayfork.carrier=vsock:1 hayfork.wings=2"),
            Err(CmdlineError::Unknown("hayfork.wings=2".into()))
        );
    }
}
