// ai with @ai-sdk/openai and @ai-sdk/openai-compatible.
import { embed, generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { z } from "zod";
import { play } from "./played.mjs";

const where = { baseURL: process.argv[2], apiKey: "none" };
const openai = createOpenAI(where), other = createOpenAICompatible({ ...where, name: "gateway" });
const models = { chat: openai.chat("m"), responses: openai.responses("m"), compatible: other.chatModel("m") };
const prompt = "What is the weather in Turin?", maxRetries = 0;
const weather = tool({ description: "The weather.", inputSchema: z.object({ place: z.string() }), execute: async () => "rain" });

const cases = { embed: async () => (await embed({ model: openai.embedding("m"), value: "a", maxRetries })).embedding };
for (const [name, model] of Object.entries(models)) {
  cases[`text, ${name}`] = async () => (await generateText({ model, prompt, maxRetries })).text;
  cases[`stream, ${name}`] = async () => streamText({ model, prompt, maxRetries }).text;
  cases[`tool loop, ${name}`] = async () => {
    const { text, steps } = await generateText({ model, prompt, tools: { weather }, stopWhen: stepCountIs(3), maxRetries });
    return { text, steps: steps.length };
  };
  cases[`streamed tool loop, ${name}`] = async () =>
    streamText({ model, prompt, tools: { weather }, stopWhen: stepCountIs(3), maxRetries }).text;
}
cases["object, chat"] = async () => (await generateObject({ model: models.chat, prompt, schema: z.object({ place: z.string() }), maxRetries })).object;
cases["image, responses"] = async () => (await generateText({
  model: models.responses, maxRetries,
  messages: [{ role: "user", content: [{ type: "text", text: "x" }, { type: "image", image: "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==" }] }],
})).text;
// By default a conversation's earlier replies are sent as references to items that the server has stored.
for (const [name, store] of [["conversation of references, responses", true], ["conversation, responses", false]])
  cases[name] = async () => {
    const settings = { model: models.responses, tools: { weather }, stopWhen: stepCountIs(3), maxRetries, providerOptions: { openai: { store } } };
    const asked = [{ role: "user", content: prompt }];
    const { response, responseMessages } = await generateText({ ...settings, messages: asked });
    const said = responseMessages ?? response.messages;  // ai 7, ai 6
    return (await generateText({ ...settings, messages: [...asked, ...said, { role: "user", content: "And in Rome?" }] })).text;
  };
await play(cases);
