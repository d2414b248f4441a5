// The views of lecture mode, in order. Write your own: each is what stands behind # in the address of the page.
export const views = [
  "at=encoder-embedding",
  "at=encoder-1-self_attention",
  "at=encoder-1-feed_forward",
  "at=decoder-1-self_attention",
  "at={last}-cross_attention",
  "at={last}-cross_attention&scale=false",
  "at=encoder-1-self_attention&positions=none",
  "at=what-if",
  "at=output",
  "at=search&alpha=0",
  "at=search&alpha=1",
  "at=training",
];
