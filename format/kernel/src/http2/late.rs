//! The calls that ended last, so that a late reset can be told from any other.

const WORDS: usize = 16;
const BITS: u32 = WORDS as u32 * u64::BITS;

/// The ends of the latest 1,024 calls of a peer, one bit each.
#[derive(Default)]
pub struct EndedCalls {
    bits: [u64; WORDS],
    /// The highest call, from 0.
    highest: u32,
}

/// Clients open streams with odd numbers.
fn call_of(stream: u32) -> u32 {
    stream >> 1
}

impl EndedCalls {
    fn word(&mut self, call: u32) -> Option<(&mut u64, u64)> {
        let bit = call % BITS;
        let word = self.bits.get_mut((bit / u64::BITS) as usize)?;
        Some((word, 1 << (bit % u64::BITS)))
    }

    /// The peer has opened a stream.
    pub fn opened(&mut self, stream: u32) {
        let call = call_of(stream);
        let skipped = call.saturating_sub(self.highest);
        if skipped >= BITS {
            self.bits = [0; WORDS];
        } else {
            for each in self.highest + 1..=call {
                if let Some((word, bit)) = self.word(each) {
                    *word &= !bit;
                }
            }
        }
        self.highest = self.highest.max(call);
    }

    /// Both sides have ended a stream.
    pub fn ended(&mut self, stream: u32) {
        let call = call_of(stream);
        if self.highest.saturating_sub(call) < BITS {
            if let Some((word, bit)) = self.word(call) {
                *word |= bit;
            }
        }
    }

    /// Whether both sides had ended a stream; true once.
    pub fn was_ended(&mut self, stream: u32) -> bool {
        let call = call_of(stream);
        if call > self.highest || self.highest - call >= BITS {
            return false;
        }
        let Some((word, bit)) = self.word(call) else {
            return false;
        };
        let was = *word & bit != 0;
        *word &= !bit;
        was
    }
}
