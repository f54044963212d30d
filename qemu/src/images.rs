//! The files that a guest is made of.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use hayfork_vmm::backend::BackendError;

/// Opens an image for reading.
pub(crate) fn open(what: &'static str, path: &Path) -> Result<File, BackendError> {
    let unreadable = |source| BackendError::ImageUnreadable { what, path: path.to_path_buf(), source };
    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(unreadable(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")));
    }
    if metadata.len() == 0 {
        return Err(unreadable(io::Error::new(io::ErrorKind::InvalidData, "it is empty")));
    }
    Ok(file)
}

/// A compressed kernel would start QEMU, and fail there with a message that helps nobody.
pub(crate) fn check_kernel(mut kernel: &File, path: &Path) -> Result<(), BackendError> {
    let unreadable =
        |source| BackendError::ImageUnreadable { what: "kernel", path: path.to_path_buf(), source };
    let mut magic = [0; 4];
    match kernel.read_exact(&mut magic) {
        Ok(()) if magic == *b"\x7fELF" => Ok(()),
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(unreadable(error)),
        Ok(()) | Err(_) => Err(unreadable(io::Error::new(
            io::ErrorKind::InvalidData,
            "it is no uncompressed ELF kernel (vmlinux)",
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_that_cannot_be_images_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vmlinux");
        let check = |path: &Path| open("kernel", path).and_then(|file| check_kernel(&file, path));
        let message = |path: &Path| {
            let error = check(path).unwrap_err();
            assert_eq!(error.code(), "image_unreadable");
            assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
            std::error::Error::source(&error).unwrap().to_string()
        };
        assert!(message(&path).contains("No such file"));
        assert!(message(folder.path()).contains("no regular file"));
        std::fs::write(&path, "").unwrap();
        assert!(message(&path).contains("empty"));
        std::fs::write(&path, "MZ").unwrap();
        assert!(message(&path).contains("ELF"));
        std::fs::write(&path, "MZ\0\0\0").unwrap();
        assert!(message(&path).contains("ELF"));
        std::fs::write(&path, "\x7fELF\x02").unwrap();
        check(&path).unwrap();
    }
}
