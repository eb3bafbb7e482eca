//! Reads the headers of a Linux program: its processor, and whether it needs a loader and libraries.

/// The headers of a 64-bit little-endian ELF file, the format of every machine that the shim is built for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ElfHeaders {
    /// `EM_X86_64` is 62, `EM_AARCH64` is 183.
    pub machine: u16,
    pub linking: Linking,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Linking {
    /// Needs a loader and libraries.
    Dynamic,
    Static,
}

/// The type of the program header that names the loader.
const PT_INTERP: usize = 3;

impl ElfHeaders {
    /// `file` is the whole file, or its beginning with all program headers. `None` if it is not such a file, or incomplete.
    pub fn read(file: &[u8]) -> Option<Self> {
        let number = |offset: usize, length: usize| -> Option<usize> {
            let bytes = file.get(offset..offset.checked_add(length)?)?;
            bytes
                .iter()
                .rev()
                .try_fold(0_usize, |value, byte| value.checked_mul(256)?.checked_add(usize::from(*byte)))
        };
        if file.get(..6)? != b"\x7fELF\x02\x01" {
            return None;
        }
        let machine = u16::try_from(number(18, 2)?).ok()?;
        let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        let mut linking = Linking::Static;
        for index in 0..count {
            let header = table.checked_add(index.checked_mul(size)?)?;
            if number(header, 4)? == PT_INTERP {
                linking = Linking::Dynamic;
            }
        }
        Some(Self { machine, linking })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The headers of a program for x86_64 with these types of program headers.
    fn program(types: &[u8]) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01".to_vec();
        file.resize(64, 0);
        (file[18], file[32], file[54], file[56]) = (62, 64, 56, types.len() as u8);
        for kind in types {
            file.push(*kind);
            file.extend([0; 55]);
        }
        file
    }

    fn linking(file: &[u8]) -> Option<Linking> {
        ElfHeaders::read(file).map(|headers| headers.linking)
    }

    #[test]
    fn a_program_with_a_loader_is_dynamic() {
        assert_eq!(linking(&program(&[6, 3, 1])), Some(Linking::Dynamic));
        assert_eq!(
            ElfHeaders::read(&program(&[1, 2])),
            Some(ElfHeaders { machine: 62, linking: Linking::Static })
        );
        assert_eq!(linking(&std::fs::read("/proc/self/exe").unwrap()), Some(Linking::Dynamic));
    }

    #[test]
    fn other_and_truncated_files_are_not_read() {
        assert_eq!(linking(b"#!/bin/sh\n"), None);
        assert_eq!(linking(&program(&[1, 2])[..100]), None);
        let mut invalid_offset = program(&[1]);
        invalid_offset[32..40].fill(0xff);
        assert_eq!(linking(&invalid_offset), None);
    }
}
