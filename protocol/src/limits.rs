//! Every bound of the protocol in one place. Both sides enforce each of them.

/// Version of the protocol that this crate speaks. A change that an older peer would misread raises
/// it; postcard enums may grow at their end without one.
pub const VERSION: u16 = 2;

/// Oldest peer version that this crate still understands.
pub const MIN_VERSION: u16 = 2;

/// Largest payload of a data frame, in bytes. Small enough that a control frame never waits long
/// behind a bulk transfer.
pub const MAX_DATA: usize = 64 * 1024;

/// Largest payload of any other frame, in bytes: room for [`MAX_CODE`] and [`MAX_ENV_TOTAL`] in one
/// request.
pub const MAX_CONTROL: usize = 2 * 1024 * 1024;

/// Bytes that may be under way on one channel of one stream before the receiver grants more.
pub const WINDOW: u32 = 256 * 1024;

/// Streams that a host may have open at once.
pub const MAX_STREAMS: usize = 256;

/// Bytes of encoded frames that [`crate::Mux`] holds for a carrier that does not take them; data is
/// refused beyond it, control frames are not.
pub const MAX_OUTPUT: usize = 1024 * 1024;

/// Largest source text of one execution, in bytes.
pub const MAX_CODE: usize = 1024 * 1024;

/// Environment entries of one execution or command.
pub const MAX_ENV_ENTRIES: usize = 100;

/// Longest environment name, in bytes.
pub const MAX_ENV_NAME: usize = 256;

/// Longest environment value, in bytes.
pub const MAX_ENV_VALUE: usize = 4096;

/// All environment entries of one request together, in bytes.
pub const MAX_ENV_TOTAL: usize = MAX_ENV_ENTRIES * (MAX_ENV_NAME + MAX_ENV_VALUE);

/// Longest path, in bytes (`PATH_MAX` without its NUL).
pub const MAX_PATH: usize = 4095;

/// Longest component of a path, in bytes (`NAME_MAX`).
pub const MAX_NAME: usize = 255;

/// Longest hostname, in bytes (Linux's `__NEW_UTS_LEN`).
pub const MAX_HOSTNAME: usize = 64;

/// Longest label of a hostname, in bytes (RFC 1035).
pub const MAX_HOSTNAME_LABEL: usize = 63;

/// Largest file of one transfer, in bytes.
pub const MAX_FILE: u64 = 16 * 1024 * 1024 * 1024;

/// All parts of one display or result bundle together, in bytes.
pub const MAX_BUNDLE: u32 = 16 * 1024 * 1024;

/// Parts (MIME types) of one bundle.
pub const MAX_BUNDLE_PARTS: usize = 32;

/// Entries in one [`crate::Event::Entries`] message; longer listings take several.
pub const MAX_ENTRIES_PER_MESSAGE: usize = 512;

/// Folders that may be watched at once ([`crate::Request::Watch`]).
pub const MAX_WATCHES: usize = 32;

/// Folders that all watches of a guest look at together: those that they name and those below. Half of what Linux gives a
/// user at least, so that enough is left for the user's own programs.
pub const MAX_WATCHED_FOLDERS: usize = 4096;

/// Default bound on an execution's standard output, in bytes.
pub const DEFAULT_STDOUT: u64 = 1_000_000;

/// Default bound on an execution's standard error, in bytes.
pub const DEFAULT_STDERR: u64 = 100_000;
