//! Random choices of the fuzzers.

/// Xorshift: the same bytes for the same seed, everywhere.
pub struct Chance(pub u64);

impl Chance {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, most: usize) -> usize {
        (self.next() % most.max(1) as u64) as usize
    }

    pub fn bytes(&mut self, most: usize) -> Vec<u8> {
        let count = self.below(most);
        (0..count).map(|_| self.next() as u8).collect()
    }

    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        at(choices, self.below(choices.len()))
    }
}

/// An item that is there; this is no code that reads what others sent.
pub fn at<T: Copy>(items: &[T], index: usize) -> T {
    *items.get(index).unwrap_or_else(|| unreachable!())
}
